"""A target policy's own path through the logged texts: how many steps, and how long they take.

The text is the same whoever drafts, so it tells where a policy's copies would have led. Where a
neural draft would have led, the log shows at the positions at which one was verified, and as far;
beyond and elsewhere the survival model says how likely each of its tokens is accepted. So each
position has a probability of being one of the policy's decisions: 1 at the first, and further on
that of arriving there from an earlier one.

The model is the estimators', but by the length of the match alone, and shrunk to each request's own
hazards: what became of the last draft is not known off the logged path.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.evaluate.logged.estimators import IMAGINARY, LAST_DRAFTS, MATCHES, Sums
from adaspec.evaluate.logged.outcomes import Plans, outcomes_of
from adaspec.jit import compiled
from adaspec.replay.logged import Log

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


def every_position(log: Log) -> Log:
    """The log with a step at every position, none of which drafted; the load is that before it."""
    columns = log.recording.columns
    sizes = columns.length - 1
    first = np.concatenate([[0], np.cumsum(sizes)])
    request = np.repeat(np.arange(len(sizes)), sizes)
    position = (np.arange(first[-1]) - first[request] + 1).astype(np.int32)
    # Before a request's first logged step its load is that of this step.
    latest = np.searchsorted(log.at, columns.offset[request] + position, side="right") - 1
    none = np.zeros(len(position), np.int32)
    return replace(
        log,
        first=first,
        position=position,
        neural_len=none,
        drafted=none,
        accepted=none,
        weight=np.ones(len(position)),
        propensity=np.full(len(position), np.nan),
        reach=np.zeros((len(position), log.reach.shape[1])),
        running=log.running[np.maximum(latest, log.first[request])],
    )


def path_totals(
    log: Log, everywhere: Log, plans: Plans, cost: CostModel, sums: Sums, counts: Array
) -> tuple[Array, Array, Array]:
    """Expected tokens, seconds and steps of the requests of each sample of `counts`.

    `plans` are those at the positions of `everywhere`, `sums` the estimators'.
    """
    outcomes = outcomes_of(everywhere, plans, cost)
    tokens = sums.reached.shape[2]
    shape = (len(log.recording), len(MATCHES) + 1, LAST_DRAFTS, tokens)
    reached, taken = (each.reshape(shape).sum(2) for each in (sums.reached, sums.taken))
    known = np.full(len(everywhere.position), -1, np.int64)
    step_at = everywhere.first[log.request] + log.position - 1
    known[step_at] = np.arange(len(log.position))
    match = np.digitize(everywhere.recording.columns.match[everywhere.at], MATCHES)
    taken_by_match, reached_by_match = (np.tensordot(counts, each, 1) for each in (taken, reached))
    pooled = taken_by_match.sum(1) / np.maximum(reached_by_match.sum(1), 1.0)
    hazard = (taken_by_match + IMAGINARY * pooled[:, None]) / (reached_by_match + IMAGINARY)
    totals = _walk(
        counts,
        everywhere.first,
        match,
        known,
        log.neural_len,
        log.neural_accepted,
        hazard,
        reached.sum(1),
        taken.sum(1),
        outcomes.base,
        np.ascontiguousarray(outcomes.gain[:, :tokens]),
        outcomes.seconds,
    )
    return totals[0], totals[1], totals[2]


@compiled
def _walk(
    counts: Array,
    first: Longs,
    match: Longs,
    known: Longs,
    drafted: Ints,
    taken: Ints,
    by_match: Array,
    reached_by_request: Array,
    taken_by_request: Array,
    base: Array,
    gain: Array,
    seconds: Array,
) -> Array:
    """Tokens, seconds and steps of every sample."""
    totals = np.zeros((3, counts.shape[0]))
    tokens = gain.shape[1]
    for sample in range(counts.shape[0]):
        for r in range(first.shape[0] - 1):
            count, size = counts[sample, r], first[r + 1] - first[r]
            if count == 0:
                continue
            visits = np.zeros(size + 1)
            visits[0] = 1.0
            totals[0, sample] += count * size
            for p in range(size):
                visit = visits[p]
                if visit == 0:
                    continue
                row = first[r] + p
                totals[1, sample] += count * visit * seconds[row]
                totals[2, sample] += count * visit
                step = known[row]
                emitted, chance = base[row], 1.0
                for j in range(tokens):
                    if gain[row, j] == 0:
                        break
                    if step >= 0 and j < drafted[step]:
                        more = 1.0 if j < taken[step] else 0.0
                    else:
                        own = taken_by_request[r, j] + IMAGINARY * by_match[sample, match[row], j]
                        more = own / (reached_by_request[r, j] + IMAGINARY)
                    visits[min(p + int(emitted), size)] += visit * chance * (1 - more)
                    chance *= more
                    emitted += gain[row, j]
                visits[min(p + int(emitted), size)] += visit * chance
    return totals
