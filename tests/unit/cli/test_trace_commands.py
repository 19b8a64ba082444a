from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from synthetic import write_synthetic

from adaspec.cli.import_command import command as import_command
from adaspec.trace.reader import TraceReader
from adaspec.vllm import prompt_run

Mistake = Callable[..., str]
LINE = {"prompt_token_ids": [1], "output_token_ids": [2, 3]}


def test_import_prints_json_to_standard_output_alone(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(json.dumps(LINE))
    arguments = ["jsonl", str(tmp_path / "chat.jsonl"), "-o", str(tmp_path / "t")]
    words = [*arguments, "--target", "a/target", "--vocabulary-size", "128256", "--json"]
    result = CliRunner().invoke(import_command, words)
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert result.stderr == ""
    assert summary["requests"] == 1
    manifest = TraceReader(tmp_path / "t").manifest
    assert (manifest.target, manifest.vocabulary_hash) == ("a/target", "128256")
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
    assert "another length than their output, and so not paired with it: 1" in short


@pytest.mark.parametrize("place", ["prompts.jsonl", "/proc/traces", "x" * 250])
def test_record_refuses_a_place_that_takes_no_trace_before_it_looks_for_an_engine(
    tmp_path: Path, mistake: Mistake, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"text": "a", "workload": "w", "id": "1"}')
    monkeypatch.setattr(prompt_run, "prepare_vllm", lambda _: pytest.fail("it went on"))
    words = ["record", "--model", "M", "--prompts", tmp_path / "prompts.jsonl"]
    assert "choose a" in mistake(*words, "-o", tmp_path / place)


GOOD = {"workload": "w", "prompt_token_ids": [1], "output_token_ids": [2, 3]}
NEURAL = GOOD | {"neural_accepted": [None, 1], "drafted_tokens": [[], [3]]}
DRAFTED = {"per_step_accepted": [0], "per_step_drafted": [1]}
ANSWER = {"id": "1", "model": "m", "metrics": {"speculative_decoding": DRAFTED}}
DEEP = "[" * 5_000 + "]" * 5_000


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("jsonl", json.dumps(GOOD | {"id": "\ud800"})),
        ("jsonl", json.dumps(GOOD | {"id": 0}).replace(": 0", ": " + "9" * 5_000)),
        ("jsonl", json.dumps(NEURAL | {"margin": [[], [10**400]]})),
        ("jsonl", json.dumps(NEURAL)[:-1] + ', "id": ' + DEEP + "}"),
        ("specdecode-bench", json.dumps({"id": "\ud800", "prompt_token_ids": [1]})),
        ("vllm-responses", json.dumps(ANSWER | {"usage": {"completion_tokens": 10**400}})),
    ],
)
def test_a_line_that_no_reader_should_take_is_the_users_mistake(
    tmp_path: Path, mistake: Mistake, format: str, line: str
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(line)
    assert str(file) in mistake("import", format, file, "-o", tmp_path / "t")


def test_a_folder_of_traces_names_those_that_it_holds(tmp_path: Path, mistake: Mistake) -> None:
    for name in ("logged-1", "dense-1"):
        write_synthetic(tmp_path / "live" / name, requests_per_workload=1)
    said = mistake("inspect", tmp_path / "live")
    assert (
        f"is no trace, but a folder of 2: give one or several of {tmp_path}/live/dense-1," in said
    )


def test_a_recording_of_a_model_goes_on_by_whatever_path_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    seen = []
    for model, target in (("models/mine", None), ("./models/mine", None), ("models/mine", "mine")):
        options = prompt_run.RecordOptions(model, None, tmp_path, tmp_path, target=target)
        seen.append(options.traced_target)
    assert seen == [str(tmp_path / "models" / "mine")] * 2 + ["mine"]


def test_a_name_that_is_no_text_is_refused_and_not_written(
    tmp_path: Path, mistake: Mistake
) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(NEURAL))
    words = ["import", "jsonl", tmp_path / "x.jsonl", "-o", tmp_path / "t"]
    assert "not a text" in mistake(*words, "--drafter", "\udc80")
