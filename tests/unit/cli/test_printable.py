"""No text out of a file steers the terminal that it is shown on."""

import json

import pytest

from adaspec.cli.main import run
from adaspec.errors import printable
from adaspec.trace.manifest import Manifest
from adaspec.trace.writer import TraceWriter

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


def test_what_would_steer_a_terminal_is_replaced():
    assert printable("chat\x1b[31m\nedits é") == "chat?[31m?edits é"


def test_inspect_shows_no_control_characters_of_a_manifest_or_a_file_left_over(shown, tmp_path):
    names = ("target", "drafter", "engine", "engine_version", "hardware")
    with TraceWriter(tmp_path / "t", Manifest(kind="logged", **dict.fromkeys(names, CLEAR))):
        pass
    (tmp_path / "t" / f".{CLEAR}.unfinished").touch()
    code, out, _ = shown("inspect", tmp_path / "t")
    assert code == 0
    assert "?[2J" in out
    assert "not read" in out
    assert shown("inspect", tmp_path / "t", "--json")[0] == 0


def test_import_shows_no_control_characters_of_keys_and_names(shown, tmp_path):
    line = {"id": "1", "prompt_token_ids": [1], "generated_token_ids": [2], CLEAR: 1}
    file = tmp_path / f"{CLEAR}.jsonl"
    file.write_text(json.dumps(line))
    assert shown("import", "specdecode-bench", file, "-o", tmp_path / f"t{CLEAR}")[0] == 0
    assert shown("import", "jsonl", file, "-o", tmp_path / "u")[0] == 2
