"""What observers are told of a step, in the terms in which they know one of a V1 engine."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from adaspec.draft.answers import IN_ANSWERS
from adaspec.step.cut import Cut
from adaspec.vllm.batch import Verification
from adaspec.vllm.v2.drafted_step import Batch, Context, DraftedStep, Drafts, Proposal, Step
from adaspec.vllm.v2.host import Decided, Verified, expected_tokens
from adaspec.vllm.v2.running import Pending


def drafted_event(pending: Pending, proposes: bool) -> DraftedStep:
    """What was drafted in a step whose report has come."""
    decided, report = pending.decided, pending.decided.report
    assert report is not None
    lengths = decided.lengths if proposes else report.wanted
    neural = np.minimum(report.neural, lengths).astype(np.int32)
    # Where it lies is known to the device alone.
    start = np.where(report.remembered > 0, IN_ANSWERS, -1)
    requests = pending.requests.tolist()
    outputs = [each.output for each in requests]
    position = (report.context - decided.prompt_tokens).astype(np.int32)
    step = Step(
        batch=Batch(position, Context(outputs)),
        proposal=Proposal(report.available),
        holds_neural=decided.holds_neural,
        context_tokens=report.context,
        forwards=decided.forwards,
    )
    chosen = [report.tokens[row, :length].tolist() for row, length in enumerate(lengths.tolist())]
    return DraftedStep(
        number=pending.number,
        requests=[each.name for each in requests],
        step=step,
        drafts=Drafts(report.drafted, report.confidences, pending.drafter_runs),
        recorded=pending.recorded,
        cut=Cut(neural, (lengths - neural).astype(np.int32), start.astype(np.int32)),
        chosen=chosen,
        decision_s=pending.decision_s,
        proposes=proposes,
        reasons=partial(_reasons, decided),
        room=pending.room,
        limited=pending.limited,
        proposed=chosen if proposes else [[] for _ in chosen],
    )


def _reasons(decided: Decided, rows: int) -> tuple[float, list[dict[str, Any]]]:
    """What the host knows of why rows were decided so; features stay on the device."""
    report = decided.report
    assert report is not None
    return decided.price, [
        {"survival": report.survival[row][: report.length[row]].tolist()} for row in range(rows)
    ]


def verified_event(before: Pending, verified: Verified, after: Pending) -> Any:
    """What became of the drafts of a step."""
    event, report = before.event, before.decided.report
    assert event is not None and report is not None
    expected = expected_tokens(report, verified.drafted)
    event.expected = expected[:, :2].sum(axis=1).astype(np.float32)
    rows = zip(event.requests, event.proposed, verified.drafted.tolist(), strict=True)
    dropped = [name for name, proposed, drafted in rows if proposed and not drafted]
    complete = bool(verified.known.any()) and set(after.requests) <= set(before.requests)
    return Verification(
        event,  # type: ignore[arg-type]
        verified.known,
        verified.drafted,
        verified.neural_drafted,
        verified.accepted,
        verified.emitted,
        verified.emitted_tokens,
        verified.known & ~before.recorded,
        dropped,
        bool(verified.known.any()),
        complete,
        step_s=before.decided.step_s,
        took_s=after.began_s - before.began_s if complete else None,
    )
