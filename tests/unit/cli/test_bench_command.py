from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from adaspec.cli.bench_command import command

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
