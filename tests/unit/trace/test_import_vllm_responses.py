from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaspec.errors import TraceError
from adaspec.trace.importers.formats import import_trace
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import LoggedStep


def response(id: str = "cmpl-1", **changes: Any) -> dict[str, Any]:
    """As vLLM 0.32 returns it: 1 token from prefill, then steps of 3, 1 and 2 tokens."""
    metrics = {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 1 / 3,
        "acceptance_histogram": [1, 1, 1, 0],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 9,
        "num_spec_tokens": 3,
        "per_step_accepted": [2, 0, 1],
        "per_step_drafted": [3, 3, 3],
    }
    return {
        "id": id,
        "object": "text_completion",
        "model": "a/target",
        "choices": [{"index": 0, "text": "..."}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17},
        "metrics": {"time_to_first_token_ms": None, "speculative_decoding": metrics | changes},
    }


def load(file: Path, text: object, **options: Any) -> tuple[dict[str, Any], list[LoggedStep]]:
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    out = file.parent / "t"
    summary = import_trace("vllm-responses", [file], out, **options)
    return summary, list(TraceReader(out).steps())


def test_a_response_becomes_a_row_per_step(tmp_path: Path) -> None:
    summary, steps = load(tmp_path / "chat.jsonl", response())
    assert [(step.step, step.position, step.draft_len, step.accepted) for step in steps] == [
        (0, 1, 3, 2),
        (1, 4, 3, 0),
        (2, 5, 3, 1),
    ]
    assert [step.context_tokens for step in steps] == [11, 14, 15]
    assert {(step.workload, step.id, step.source, step.output_len) for step in steps} == {
        ("chat", "cmpl-1", "unknown", 7)
    }
    assert (summary["kind"], summary["requests"], summary["steps"]) == ("logged", 1, 3)
    assert summary["target"] == "a/target"
    assert summary["output_tokens"] == 7
    # A last step is clipped at the stop.
    _, steps = load(tmp_path / "more.jsonl", response(per_step_accepted=[2, 0, 3]), force=True)
    assert [step.accepted for step in steps] == [2, 0, 2]


def test_positions_are_null_where_steps_without_a_draft_are_unlisted(tmp_path: Path) -> None:
    short = {"per_step_accepted": [2, 0], "per_step_drafted": [3, 3]}
    summary, steps = load(tmp_path / "chat.jsonl", response(**short))
    assert [(step.position, step.context_tokens) for step in steps] == [(None, None)] * 2
    assert summary["notes"] == {"requests with undrafted steps, positions unknown": 1}


def test_batch_output_is_unwrapped_and_named_by_its_custom_id(tmp_path: Path) -> None:
    line = {"id": "vllm-1", "custom_id": "mine", "response": {"body": response()}, "error": None}
    _, steps = load(tmp_path / "batch.jsonl", line)
    assert {step.id for step in steps} == {"mine"}


def test_responses_without_metrics_are_skipped_and_counted(tmp_path: Path) -> None:
    several = response("n-is-2") | {"metrics": None}
    single = response("one-token", per_step_accepted=None, num_spec_steps=0)
    lines = "\n".join(map(json.dumps, (several, response(), single)))
    summary, steps = load(tmp_path / "chat.jsonl", lines)
    assert len(steps) == 3
    assert summary["notes"] == {
        "responses without speculative-decoding metrics skipped": 1,
        "responses without a drafted step skipped": 1,
    }


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (response("b") | {"model": "another"}, "is of model 'another', those before it of"),
        (response("b", per_step_accepted=None), "serve with --per-request-spec-decode-metrics det"),
        (response("b", per_step_accepted=[1]), "1 entries in per_step_accepted, 3 in per_step_dr"),
        (response("a"), "step 0 of request 'a' of workload 'chat' comes again"),
        ([], "is a list, expected an object"),
    ],
)
def test_a_bad_response_is_named_by_file_and_line(
    tmp_path: Path, bad: object, message: str
) -> None:
    with pytest.raises(TraceError) as caught:
        load(tmp_path / "chat.jsonl", json.dumps(response("a")) + "\n" + json.dumps(bad))
    assert str(caught.value).startswith(f"{tmp_path}/chat.jsonl line 2: ")
    assert message in str(caught.value)
    assert not (tmp_path / "t").exists()
