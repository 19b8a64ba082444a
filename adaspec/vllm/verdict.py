"""What the target said of a proposal: how much of it was judged, and what came of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.protocol import Batch, Ints, Proposal
from adaspec.vllm.roster import Rows


@dataclass(frozen=True, slots=True)
class Pending:
    """A proposal on its way through the target."""

    step: int
    requests: list[str]
    batch: Batch
    proposal: Proposal
    neural_len: Ints
    tokens: list[list[int]]
    proposes: NDArray[np.bool_]
    """Rows whose decision goes to the target: none that is recorded, and none in the shadow."""
    forwards: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a proposal, row by row of its batch."""

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


def verdict_on(pending: Pending, rows: Rows) -> Verdict:
    """What the engine's next batch tells of a proposal, as far as it was verified as proposed."""
    count = len(pending.requests)
    at = {name: row for row, name in enumerate(rows.requests)}
    context = pending.batch.context_tokens
    known = np.zeros(count, np.bool_)
    drafted, accepted = np.zeros(count, np.int32), np.zeros(count, np.int32)
    emitted_tokens = np.zeros(count, np.int32)
    judged = pending.proposes.copy()
    sampled: list[list[int]] = [[] for _ in range(count)]
    dropped = []
    for row, name in enumerate(pending.requests):
        here = at.get(name)
        # A step that never came to us lies between where the text goes on elsewhere.
        if here is not None and rows.known[here] != context[row]:
            here = None
        came = list(rows.sampled[here]) if here is not None else []
        ours = pending.tokens[row]
        verified = _verified(ours, rows.verified.get(name, ())) if came else 0
        if ours and not verified:
            dropped.append(name)
            judged[row] = False
        if not came or len(came) > 1 + verified:
            continue
        known[row] = True
        drafted[row], accepted[row] = verified, len(came) - 1
        emitted_tokens[row], sampled[row] = len(came), came
    emitted = np.full((count, int(emitted_tokens.max(initial=0))), -1, np.int32)
    for row, came in enumerate(sampled):
        emitted[row, : len(came)] = came
    neural_drafted = np.minimum(pending.neural_len, drafted).astype(np.int32)
    judged &= known
    return Verdict(
        known, drafted, neural_drafted, accepted, emitted, emitted_tokens, judged, dropped
    )


def is_all(pending: Pending, found: Verdict, rows: Rows) -> bool:
    """Whether the engine's step verified this proposal and did nothing else."""
    known = {name for name, is_known in zip(pending.requests, found.known, strict=True) if is_known}
    return bool(known) and known.issuperset(rows.requests)


def _verified(ours: list[int], judged: Sequence[int]) -> int:
    """How many of our tokens the target judged: the scheduler may cut, pad or drop a draft."""
    count = 0
    for token, found in zip(ours, judged, strict=False):
        if token != found:
            break
        count += 1
    return count
