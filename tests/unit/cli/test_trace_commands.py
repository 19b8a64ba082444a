import json

import pytest
from click.testing import CliRunner

from adaspec.cli.import_command import command as import_command
from adaspec.trace.reader import TraceReader
from adaspec.vllm import commands

LINE = {"prompt_token_ids": [1], "output_token_ids": [2, 3]}


def test_import_prints_json_to_standard_output_alone(tmp_path):
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
    assert "a trace of 1 requests" in told.stderr


def test_import_says_what_neural_counts_are_good_for(tmp_path):
    def told(*accepted):
        lines = [LINE | ({} if each is None else {"neural_accepted": each}) for each in accepted]
        (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, lines)))
        arguments = ["jsonl", str(tmp_path / "chat.jsonl"), "-o", str(tmp_path / "t"), "--force"]
        return CliRunner().invoke(import_command, arguments).stderr

    assert "for n-gram drafts alone: it holds no neural counts" in told(None)
    assert "paired" not in told([None, 1])
    short = told([None, 1], [None], None)
    assert "another length than their output, and so not paired with it: 1" in short


@pytest.mark.parametrize("place", ["prompts.jsonl", "/proc/traces", "x" * 250])
def test_record_refuses_a_place_that_takes_no_trace_before_it_looks_for_an_engine(
    tmp_path, mistake, monkeypatch, place
):
    (tmp_path / "prompts.jsonl").write_text('{"text": "a", "workload": "w", "id": "1"}')
    monkeypatch.setattr(commands, "prepare_vllm", lambda _: pytest.fail("it went on"))
    words = ["record", "--model", "M", "--prompts", tmp_path / "prompts.jsonl"]
    assert "choose a" in mistake(*words, "-o", tmp_path / place)
