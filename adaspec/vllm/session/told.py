"""What observers are told of a step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from adaspec.policy.planner.memory import NEURAL, NGRAM, SPLICE
from adaspec.vllm.events import DraftedStep, VerifiedStep
from adaspec.vllm.session.host import Decided, Verified, expected_tokens
from adaspec.vllm.session.running import Pending


def drafted_event(pending: Pending) -> DraftedStep:
    """What was drafted in a step whose report has come."""
    decided, report = pending.decided, pending.decided.report
    assert report is not None
    lengths = decided.lengths
    neural = np.minimum(report.neural, lengths).astype(np.int32)
    requests = pending.requests.tolist()
    return DraftedStep(
        number=pending.number,
        requests=[each.name for each in requests],
        outputs=[each.output for each in requests],
        position=(report.context - decided.prompt_tokens).astype(np.int32),
        context_tokens=report.context,
        holds_neural=decided.holds_neural,
        recorded=pending.recorded,
        limited=pending.limited,
        room=pending.room,
        forwards=decided.forwards,
        drafted=report.drafted,
        confidences=report.confidences,
        available=report.available,
        neural_len=neural,
        ngram_len=(lengths - neural).astype(np.int32),
        from_answers=report.remembered > 0,
        chosen=[report.tokens[row, :each].tolist() for row, each in enumerate(lengths.tolist())],
        proposes=pending.proposes,
        reasons=partial(_reasons, decided),
        decision_s=pending.decision_s,
    )


def _reasons(decided: Decided, rows: int) -> tuple[float, list[dict[str, Any]]]:
    """What the host knows of why rows were decided so."""
    report = decided.report
    assert report is not None
    expected = expected_tokens(report.survival, report.neural, decided.lengths)
    return decided.price, [
        {
            "expected_accepted": float(expected[row, :SPLICE].sum()),
            "survival": report.survival[row][: report.length[row]].tolist(),
        }
        for row in range(rows)
    ]


def verified_event(before: Pending, verified: Verified, after: Pending) -> VerifiedStep:
    """What became of the drafts of a step."""
    event, expected = before.event, before.decided.expected
    assert event is not None
    rows = zip(event.requests, event.proposed, verified.drafted.tolist(), strict=True)
    complete = bool(verified.known.any()) and set(after.requests) <= set(before.requests)
    return VerifiedStep(
        step=event,
        known=verified.known,
        drafted=verified.drafted,
        neural_drafted=verified.neural_drafted,
        accepted=verified.accepted,
        expected=expected[:, NGRAM] + expected[:, NEURAL],
        emitted_tokens=verified.emitted_tokens,
        dropped=[name for name, proposed, drafted in rows if proposed and not drafted],
        step_s=before.decided.step_s,
        took_s=after.began_s - before.began_s if complete else None,
    )
