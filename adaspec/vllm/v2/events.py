"""What observers are told of a step, in the terms in which they know one of a V1 engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from adaspec.draft.answers import IN_ANSWERS
from adaspec.policy.protocol import Ints
from adaspec.policy.step import Cut
from adaspec.vllm.batch import EngineStep, Verification
from adaspec.vllm.v2.host import Decided, Verified, expected_tokens
from adaspec.vllm.v2.running import Pending


@dataclass(frozen=True, slots=True)
class Context:
    """What the rows have emitted."""

    outputs: list[list[int]]

    def tail(self, count: int) -> Ints:
        """(rows, count) the last emitted tokens of each row, flush right."""
        rows = np.full((len(self.outputs), count), -1, np.int32)
        for row, tokens in enumerate(self.outputs):
            last = tokens[-count:] if count else []
            rows[row, count - len(last) :] = last
        return rows


def drafted_event(pending: Pending, proposes: bool) -> EngineStep:
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
    # As far as observers ask.
    step: Any = SimpleNamespace(
        batch=SimpleNamespace(position=position, context=Context(outputs)),
        proposal=SimpleNamespace(ngram_len=report.available),
        holds_neural=decided.holds_neural,
        context_tokens=report.context,
        forwards=decided.forwards,
        cut=Cut(neural, (lengths - neural).astype(np.int32), start.astype(np.int32)),
    )
    drafts: Any = SimpleNamespace(
        tokens=report.drafted, confidences=report.confidences, count=pending.drafter_runs
    )
    chosen = [report.tokens[row, :length].tolist() for row, length in enumerate(lengths.tolist())]
    return EngineStep(
        number=pending.number,
        requests=[each.name for each in requests],
        engine_rows=pending.rows,
        step=step,
        drafts=drafts,
        recorded=pending.recorded,
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
        event,
        verified.known,
        verified.drafted,
        verified.neural_drafted,
        verified.accepted,
        verified.emitted,
        verified.emitted_tokens,
        verified.known & ~before.recorded,
        dropped,
        complete,
        step_s=before.decided.step_s,
        took_s=after.began_s - before.began_s if complete else None,
    )
