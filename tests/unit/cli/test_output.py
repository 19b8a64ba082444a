import io
import json

import numpy as np
import pytest
from rich.console import Console

from adaspec.cli.main import run
from adaspec.cli.output import ProgressBar, print_json
from adaspec.trace.schema import Manifest, Request
from adaspec.trace.writer import TraceWriter


def test_json_is_readable_null_where_nothing_was_computed_and_steers_no_terminal(capsys):
    numbers = {"rows": (np.float64(1.5), np.int32(2), np.array([1, 2])), "ok": np.bool_(True)}
    unknown = {"ci95": [np.float32("nan"), np.inf, -np.inf], "größe": np.array([np.nan])}
    steering = {"name\x9b": ["\ud800", "\u202e", "é"]}
    print_json(numbers | unknown | steering)
    out = capsys.readouterr().out
    assert out.isascii() and out.replace("\n", "").isprintable()
    computed = {"rows": [1.5, 2, [1, 2]], "ok": True}
    assert json.loads(out) == computed | {"ci95": [None] * 3, "größe": [None]} | steering


def test_where_there_is_no_terminal_progress_is_a_line_every_half_minute():
    now_s = iter([0.0, 0.0, 1.0, 29.0, 31.0, 40.0, 95.0])
    console = Console(file=io.StringIO(), force_terminal=False)
    with ProgressBar(console, lambda: next(now_s)) as bar:
        for done in range(5):
            bar("replays", done, 40)
    assert console.file.getvalue().split("\n") == [
        "replays 2/40 after 0:31",
        "replays 4/40 after 1:35",
        "",
    ]


CLEAR = "\x1b[2J\x9b31mred"


@pytest.fixture
def shown(capsys):
    """What a command prints, of which nothing may steer a terminal."""

    def run_and_look(*words):
        code = run([*map(str, words)])
        out, err = capsys.readouterr()
        steering = {sign for sign in out + err if not sign.isprintable() and sign != "\n"}
        assert steering == set()
        return code, out, err

    return run_and_look


def test_no_command_shows_control_characters_of_a_trace_or_of_names(shown, tmp_path):
    names = ("target", "drafter", "engine", "engine_version", "hardware")
    tokens = np.arange(4, dtype=np.int32)
    with TraceWriter(tmp_path / "t", Manifest(**dict.fromkeys(names, CLEAR))) as writer:
        writer.add(Request(CLEAR, CLEAR, tokens, tokens))
    code, out, _ = shown("inspect", tmp_path / "t")
    assert code == 0
    assert "?[2J" in out
    assert shown("inspect", tmp_path / "t", "--json")[0] == 0
    line = {"id": "1", "prompt_token_ids": [1], "generated_token_ids": [2], CLEAR: 1}
    file = tmp_path / f"{CLEAR}.jsonl"
    file.write_text(json.dumps(line))
    assert shown("import", "specdecode-bench", file, "-o", tmp_path / f"v{CLEAR}")[0] == 0
    assert shown("import", "jsonl", file, "-o", tmp_path / "u")[0] == 2
