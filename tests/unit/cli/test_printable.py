"""No text out of a file steers the terminal that it is shown on."""

import json
import os

import pytest
from synthetic import Workload, synthesize, write_synthetic

from adaspec.cli.main import run
from adaspec.cli.output import print_json, printable
from adaspec.trace.manifest import Manifest
from adaspec.trace.writer import TraceWriter

CLEAR = "\x1b[2J\x9b31mred"
WORKLOADS = (Workload("edits", (30, 60), (20, 50), 0.6, 12.0, 0.3, 0.8, 0.3),)


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


def test_json_escapes_what_would_steer_a_terminal(capsys):
    assert printable("chat\x1b[31m\nedits é") == "chat?[31m?edits é"
    value = {"name\x9b": ["\x7f", "\ud800", "\u202e", "é"]}
    print_json(value)
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert "é" in out
    assert json.loads(out) == value


@pytest.mark.parametrize("field", ["target", "drafter", "engine", "engine_version", "hardware"])
def test_inspect_shows_no_control_characters_of_a_manifest(shown, tmp_path, field):
    known = {"target": "t", "drafter": "d", "engine": "vllm", "neural_cap": 8, "draft_cap": 8}
    names = {"confidences": ("logprob", "margin", "entropy")}
    manifest = Manifest(kind="dense", **(known | names | {field: CLEAR}))
    with TraceWriter(tmp_path / "t", manifest) as writer:
        for request in synthesize(0, WORKLOADS, 2):
            writer.add(request)
    code, out, _ = shown("inspect", tmp_path / "t")
    assert code == 0
    assert ("?[2J" in out) is (field != "hardware")
    assert shown("inspect", tmp_path / "t", "--json")[0] == 0


def test_inspect_shows_no_control_characters_of_a_cost_file_or_a_path(shown, tmp_path):
    constants = ("fixed_s", "per_token_s", "per_kv_s", "overhead_s", "draft_fixed_s")
    document = {"schema": 1, "kind": "cost", "name": CLEAR, "target": CLEAR, "draft_per_kv_s": 0}
    file = tmp_path / f"{CLEAR}.json"
    file.write_text(json.dumps(document | dict.fromkeys(constants, 1e-3)))
    assert shown("inspect", file)[0] == 0
    assert shown("inspect", file, "--json")[0] == 0
    (tmp_path / f"{CLEAR}.json").write_text("{")
    assert shown("inspect", file)[0] == 2


def test_import_shows_no_control_characters_of_keys_and_names(shown, tmp_path):
    line = {"id": "1", "prompt_token_ids": [1], "generated_token_ids": [2], CLEAR: 1}
    file = tmp_path / f"{CLEAR}.jsonl"
    file.write_text(json.dumps(line))
    assert shown("import", "specdecode-bench", file, "-o", tmp_path / f"t{CLEAR}")[0] == 0
    assert shown("import", "jsonl", file, "-o", tmp_path / "u")[0] == 2


def test_a_warning_of_a_file_left_over_is_shown_without_its_control_characters(shown, tmp_path):
    write_synthetic(tmp_path / "t", 0, WORKLOADS, 2)
    (tmp_path / "t" / f".{CLEAR}.unfinished").touch()
    code, out, _ = shown("inspect", tmp_path / "t")
    assert code == 0
    assert "not read" in out


def test_a_path_that_is_no_text_is_shown_as_far_as_it_is_one(shown, tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    assert f"{tmp_path}/?: the folder is empty" in shown("inspect", folder)[2]
