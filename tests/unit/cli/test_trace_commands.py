from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from adaspec.cli.import_command import command as import_command
from adaspec.cli.main import run
from adaspec.cli.synthesize_command import command as synthesize_command
from adaspec.errors import TraceError
from adaspec.trace.reader import TraceReader
from adaspec.vllm import recording

LINE = {"prompt_token_ids": [1], "output_token_ids": [2, 3]}


def test_import_prints_json_to_standard_output_alone(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(json.dumps(LINE))
    arguments = ["jsonl", str(tmp_path / "chat.jsonl"), "-o", str(tmp_path / "t")]
    result = CliRunner().invoke(import_command, [*arguments, "--target", "a/target", "--json"])
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert result.stderr == ""
    assert summary["requests"] == 1
    assert TraceReader(tmp_path / "t").manifest.target == "a/target"


def test_import_tells_a_human_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(json.dumps(LINE))
    arguments = ["jsonl", str(tmp_path / "chat.jsonl"), "-o", str(tmp_path / "t")]
    result = CliRunner().invoke(import_command, arguments)
    assert result.stdout == ""
    assert "a dense trace: 1 requests, 2 output tokens" in result.stderr


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


def test_synthesize_writes_a_trace_that_says_it_is_synthetic(tmp_path: Path) -> None:
    arguments = ["-o", str(tmp_path / "t"), "--seed", "3", "--requests", "2"]
    result = CliRunner().invoke(synthesize_command, [*arguments, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["workloads"]["edits"] == 2
    assert TraceReader(tmp_path / "t").manifest.synthetic
    human = CliRunner().invoke(synthesize_command, [*arguments, "--force"])
    assert "a synthetic trace, 2 requests each" in human.stderr


def test_record_refuses_a_file_as_its_folder_before_it_looks_for_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"text": "a", "workload": "w", "id": "1"}')
    (tmp_path / "file").touch()
    words = ["record", "--model", "M", "--prompts", str(tmp_path / "prompts.jsonl")]
    assert run([*words, "-o", str(tmp_path / "file")]) == 2
    assert "file: is a file: choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", [import_command, synthesize_command])
def test_help_holds_an_example(command: object) -> None:
    result = CliRunner().invoke(command, ["--help"])  # type: ignore[arg-type]
    assert "Example:" in result.output


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
