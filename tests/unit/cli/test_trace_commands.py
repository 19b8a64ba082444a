from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from synthetic import write_synthetic

from adaspec.cli.import_command import command as import_command
from adaspec.cli.main import run
from adaspec.errors import TraceError
from adaspec.trace.reader import TraceReader
from adaspec.vllm import recording

LINE = {"prompt_token_ids": [1], "output_token_ids": [2, 3]}


def test_import_prints_json_to_standard_output_alone(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(json.dumps(LINE))
    arguments = ["jsonl", str(tmp_path / "chat.jsonl"), "-o", str(tmp_path / "t")]
    result = CliRunner().invoke(import_command, [*arguments, "--target", "a/target", "--json"])
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert result.stderr == ""
    assert summary["requests"] == 1
    assert TraceReader(tmp_path / "t").manifest.target == "a/target"
    told = CliRunner().invoke(import_command, [*arguments, "--force"])
    assert told.stdout == ""
    assert "a dense trace: 1 requests, 2 output tokens" in told.stderr


def test_import_says_what_neural_counts_are_good_for(tmp_path: Path) -> None:
    def told(*accepted: list[int | None] | None) -> str:
        lines = [LINE | ({} if each is None else {"neural_accepted": each}) for each in accepted]
        (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, lines)))
        arguments = ["jsonl", str(tmp_path / "chat.jsonl"), "-o", str(tmp_path / "t"), "--force"]
        return CliRunner().invoke(import_command, arguments).stderr

    assert "for n-gram drafts alone: it holds no neural counts" in told(None)
    assert "paired" not in told([None, 1])
    short = told([None, 1], [None], None)
    assert "1 of the requests paired" in short
    assert "another length than their output, as of another run, and so not paired with it: 1" in (
        short
    )


def test_import_leaves_errors_to_the_caller_and_an_existing_trace_alone(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(json.dumps(LINE))
    arguments = ["jsonl", str(tmp_path / "chat.jsonl"), "-o", str(tmp_path / "t")]
    CliRunner().invoke(import_command, arguments)
    result = CliRunner().invoke(import_command, arguments)
    assert isinstance(result.exception, TraceError)
    assert "--force" in str(result.exception)
    assert CliRunner().invoke(import_command, [*arguments, "--force"]).exit_code == 0


def test_record_refuses_a_file_as_its_folder_before_it_looks_for_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"text": "a", "workload": "w", "id": "1"}')
    (tmp_path / "file").touch()
    words = ["record", "--model", "M", "--prompts", str(tmp_path / "prompts.jsonl")]
    assert run([*words, "-o", str(tmp_path / "file")]) == 2
    assert "file: is a file: choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["/proc/traces", "x" * 250])
def test_record_refuses_a_place_that_takes_no_trace_before_it_looks_for_an_engine(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"text": "a", "workload": "w", "id": "1"}')
    monkeypatch.setattr(recording, "prepare_vllm", lambda _: pytest.fail("it went on"))
    words = ["record", "--model", "M", "--prompts", str(tmp_path / "prompts.jsonl")]
    assert run([*words, "-o", str(tmp_path / place)]) == 2
    assert "choose a" in capsys.readouterr().err


GOOD = {"workload": "w", "prompt_tokens": [1], "output_tokens": [2, 3]}
NEURAL = GOOD | {"neural_accepted": [None, 1], "drafted_tokens": [[], [3]]}
DRAFTED = {"per_step_accepted": [0], "per_step_drafted": [1]}
ANSWER = {"id": "1", "model": "m", "metrics": {"speculative_decoding": DRAFTED}}
DEEP = "[" * 5_000 + "]" * 5_000


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("jsonl", json.dumps(GOOD | {"id": "\ud800"})),
        ("jsonl", json.dumps(GOOD | {"id": True})),
        ("jsonl", json.dumps(GOOD | {"id": 0}).replace(": 0", ": " + "9" * 5_000)),
        ("jsonl", json.dumps(NEURAL | {"margin": [[], [10**400]]})),
        ("jsonl", json.dumps(NEURAL)[:-1] + ', "id": ' + DEEP + "}"),
        ("specdecode-bench", json.dumps({"id": "\ud800", "prompt_token_ids": [1]})),
        ("vllm-responses", json.dumps(ANSWER | {"usage": {"completion_tokens": True}})),
        ("vllm-responses", json.dumps(ANSWER | {"usage": {"completion_tokens": 10**400}})),
        ("vllm-responses", json.dumps(ANSWER | {"id": True})),
        ("vllm-responses", DEEP),
    ],
)
def test_a_line_that_no_reader_should_take_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str, line: str
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(line)
    assert run(["import", format, str(file), "-o", str(tmp_path / "t")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(file) in said
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("broken", [DEEP, '"\\ud800"'])
@pytest.mark.parametrize("name", ["manifest.json", "complete.json"])
def test_a_traces_file_of_hostile_json_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, broken: str
) -> None:
    write_synthetic(tmp_path / "t", requests_per_workload=1)
    file = tmp_path / "t" / name
    text = file.read_text()
    file.write_text(text.replace("{", '{"x": ' + broken + ", ", 1))
    assert run(["inspect", str(tmp_path / "t")]) == 2
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--target", "\udc80"], ["--drafter", "\udc80"]])
def test_a_name_that_is_no_text_is_refused_and_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(NEURAL))
    arguments = ["import", "jsonl", str(tmp_path / "x.jsonl"), "-o", str(tmp_path / "t"), *words]
    assert run(arguments) == 2
    assert "not a text" in capsys.readouterr().err
