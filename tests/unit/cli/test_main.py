import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from rich.console import Console

from adaspec.cli import inspect_command
from adaspec.cli.main import COMMANDS, run
from adaspec.cli.output import ProgressBar, print_json
from adaspec.errors import AdaspecError, TraceError
from adaspec.trace.schema import Manifest, Request
from adaspec.trace.writer import TraceWriter


def refusal(number):
    return OSError(number, os.strerror(number), "/somewhere/report.json")


@pytest.mark.parametrize(
    ("error", "code", "parts"),
    [
        (TraceError("a/part-3.parquet row 17: no"), 2, ["error: a/part-3.parquet row 17: no"]),
        (AdaspecError("here:\n  this"), 2, ["error: here: this"]),
        (KeyError("lost"), 1, ["KeyError", "not yours", "ADASPEC_TRACEBACK=1"]),
        (KeyboardInterrupt(), 130, ["error: interrupted"]),
        (refusal(errno.ENOSPC), 2, ["error: /somewhere/report.json: No space", "free some space"]),
        (refusal(errno.ENAMETOOLONG), 2, ["/somewhere/report.json: ", "another path"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_error_is_one_line_and_the_exit_code_says_whose_it_is(
    capsys, monkeypatch, error, code, parts
):
    monkeypatch.delenv("ADASPEC_TRACEBACK", raising=False)
    monkeypatch.setattr(inspect_command, "inspect", Mock(side_effect=error))
    assert run(["inspect", "traces"]) == code
    out, line = capsys.readouterr()
    assert out == ""
    assert line.startswith("adaspec: ")
    assert line.count("\n") == 1
    assert all(part in line for part in parts)


def test_the_traceback_is_printed_where_it_was_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("ADASPEC_TRACEBACK", "1")
    run(["inspect", "nowhere"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def helped(output):
    """The exit code of --help that writes there, and what it says to standard error."""
    words = [sys.executable, "-m", "adaspec", "--help"]
    done = subprocess.run(words, stdout=output, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


def test_a_reader_that_leaves_early_ends_the_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    assert helped(writing) == (141, "")
    os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_standard_output_is_said_once():
    with Path("/dev/full").open("wb") as full:
        code, said = helped(full)
    assert (code, said.count("\n")) == (2, 1)
    assert "No space left on device" in said


def test_help_names_every_command_and_works_while_none_can_be_imported(capsys, monkeypatch):
    for name in COMMANDS:
        monkeypatch.setitem(sys.modules, f"adaspec.cli.{name}_command", None)
    for flag in ("--help", "-h"):
        assert run([flag]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert all(name in out and text in out for name, text in COMMANDS.items())


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
