"""What the target made of a proposal: how much of it was judged, and what came of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.protocol import Ints
from adaspec.step.executor import Step
from adaspec.vllm.running import EngineBatch


@dataclass(frozen=True, slots=True)
class Pending:
    """A proposal on its way through the target."""

    number: int
    """Of the step that it was made in."""
    requests: list[str]
    step: Step
    neural_len: Ints
    tokens: list[list[int]]
    proposes: NDArray[np.bool_]
    """Rows whose decision goes to the target: none that is recorded, and none in the shadow."""
    forwards: int


@dataclass(frozen=True, slots=True)
class Verification:
    """What the target made of a proposal, row by row of its batch."""

    known: NDArray[np.bool_]
    """Whether that is known; where it is not, the rest says nothing."""
    drafted: Ints
    """Tokens that the target judged: the scheduler may cut or drop a draft."""
    neural_drafted: Ints
    accepted: Ints
    emitted: Ints
    """Padded with -1."""
    emitted_tokens: Ints
    judged: NDArray[np.bool_]
    """Whether the target has judged the row's decision, be it to draft nothing."""
    dropped: list[str]
    """Requests of whose drafts nothing was judged."""


def verification_of(pending: Pending, rows: EngineBatch) -> Verification:
    """What the engine's next batch shows of a proposal, as far as it was verified as proposed."""
    count = len(pending.requests)
    engine_rows = {name: row for row, name in enumerate(rows.requests)}
    context = pending.step.context_tokens
    known = np.zeros(count, np.bool_)
    drafted, accepted = np.zeros(count, np.int32), np.zeros(count, np.int32)
    emitted_tokens = np.zeros(count, np.int32)
    judged = pending.proposes.copy()
    emitted_rows: list[list[int]] = [[] for _ in range(count)]
    dropped = []
    for row, name in enumerate(pending.requests):
        engine_row = engine_rows.get(name)
        # A step that never came to us lies between where the text goes on elsewhere.
        if engine_row is not None and rows.known[engine_row] != context[row]:
            engine_row = None
        sampled = list(rows.sampled[engine_row]) if engine_row is not None else []
        proposed = pending.tokens[row]
        verified = _verified(proposed, rows.verified.get(name, ())) if sampled else 0
        if proposed and not verified:
            dropped.append(name)
            judged[row] = False
        if not sampled or len(sampled) > 1 + verified:
            continue
        known[row] = True
        drafted[row], accepted[row] = verified, len(sampled) - 1
        emitted_tokens[row], emitted_rows[row] = len(sampled), sampled
    emitted = np.full((count, int(emitted_tokens.max(initial=0))), -1, np.int32)
    for row, tokens in enumerate(emitted_rows):
        emitted[row, : len(tokens)] = tokens
    neural_drafted = np.minimum(pending.neural_len, drafted).astype(np.int32)
    judged &= known
    return Verification(
        known, drafted, neural_drafted, accepted, emitted, emitted_tokens, judged, dropped
    )


def is_all(pending: Pending, verification: Verification, rows: EngineBatch) -> bool:
    """Whether the engine's step verified this proposal and did nothing else."""
    known = {
        name
        for name, is_known in zip(pending.requests, verification.known, strict=True)
        if is_known
    }
    return bool(known) and known.issuperset(rows.requests)


def _verified(proposed: list[int], judged: Sequence[int]) -> int:
    """How many proposed tokens the target judged: the scheduler may cut, pad or drop a draft."""
    count = 0
    for token, other in zip(proposed, judged, strict=False):
        if token != other:
            break
        count += 1
    return count
