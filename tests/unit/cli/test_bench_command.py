from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from adaspec.bench import decide
from adaspec.cli.bench_command import command
from adaspec.cli.main import run

SMALL = ["lookup", "--contexts", "64,128", "--batches", "1,3", "--rounds", "1"]


def test_json_is_alone_on_stdout_and_has_a_row_per_length_batch_and_system() -> None:
    result = CliRunner().invoke(command, [*SMALL, "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    for system in ("adaspec", "vllm", "arctic"):
        asked = [(row["context_tokens"], row["batch"]) for row in rows if row["system"] == system]
        assert asked == [(64, 1), (64, 3), (128, 1), (128, 3)]
    for row in rows:
        assert (row["median_us"] is None) == (row["skipped"] is not None)
    ours = [row for row in rows if row["system"] == "adaspec"]
    assert all(row["median_us"] > 0 and row["index_prompt_ms"] > 0 for row in ours)


def test_the_table_names_what_was_skipped_and_why() -> None:
    result = CliRunner().invoke(command, SMALL)
    assert result.exit_code == 0
    assert "adaspec" in result.stdout
    assert "reference loop" in result.stdout


@pytest.mark.parametrize("words", ["0", "abc", "1k,-3", "", "2.5"])
def test_context_lengths_that_are_none_are_refused(words: str) -> None:
    result = CliRunner().invoke(command, ["lookup", "--contexts", words])
    assert result.exit_code == 2
    assert "is not a whole number from 1 up" in result.output


def test_decide_refuses_in_one_line_a_policy_that_is_none(tmp_path: Path) -> None:
    result = run(["bench", "decide", "--policy", str(tmp_path / "none")])
    assert result == 2


def test_decides_json_has_the_promised_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [1, 64, *(float(at) for at in range(9)), 0.5, 10]
    rows = [
        decide.DecideRow("mine", True, 3, *figures),
        decide.DecideRow("deaf", False, 2, *figures),
    ]
    asked = []
    monkeypatch.setattr(decide, "find_benched", asked.append)
    monkeypatch.setattr(decide, "bench_decide", lambda *_: decide.Decided(rows, 1.0, 1.0, 2.0))
    said = json.loads(CliRunner().invoke(command, ["decide", "--json"]).stdout)["rows"][0]
    for key in ("policy", "evidence", "batch", "context_tokens", "median_us", "p99_us"):
        assert key in said
    for key in ("lookup_us", "before_us", "while_us", "after_us", "reference_us"):
        assert key in said
    words = ["decide", "--policy", "mine", "--policy", "deaf"]
    table = CliRunner().invoke(command, words).stdout
    assert asked == [(), ("mine", "deaf")]
    assert "reference loop" in table
    of_mine, of_deaf = table.split("policy deaf")
    assert "policy mine" in of_mine
    assert "drafts of 3 tokens, which it listens to" in of_mine
    assert "drafts of 2 tokens, which it does not listen to" in of_deaf


def test_memory_prints_a_row_for_each_size_and_system() -> None:
    result = CliRunner().invoke(command, ["memory", "--tokens", "1000,3000", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [(row["stored_tokens"], row["system"]) for row in rows] == [
        (size, system) for size in (1000, 3000) for system in ("adaspec", "arctic")
    ]
    for row in rows:
        assert (row["median_us"] is None) == (row["skipped"] is not None)
        assert row["system"] == "arctic" or row["accepted_per_lookup"] > 0
    assert "1,000" in CliRunner().invoke(command, ["memory", "--tokens", "1000"]).stdout
