"""Estimates a target policy's outcome at logged decisions: direct, weighted, doubly robust.

A neural draft is a chain: one of k tokens of which a were accepted shows the outcome of every
length up to k, and where a < k of every longer one, too. So nothing is weighed by whether the log
took the target's very plan, but token by token, by the probability that the log drafted so far
(`Log.reach`).

    direct         what the log shows where it shows it; elsewhere the survival model, from as far
                   as the log shows
    ips            Horvitz and Thompson's: tokens that were drafted, over the probability of that
    snips          the same, self-normalised: over the weights' own sum
    clipped        ips with no weight above `MAX_WEIGHT`
    dr             doubly robust: the survival model, plus the weighed errors of its hazards where
                   the log shows them (as Robins and Rotnitzky, 1992, do for censored survival)

The survival model is Kaplan and Meier's hazard by cells: the length of the match, and what became
of the request's last neural draft.

All are functions of sums over each request, so that a bootstrap over requests, in which the model
is fitted again, weighs these sums anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.evaluate.logged.outcomes import Outcomes
from adaspec.jit import compiled
from adaspec.replay.logged import MAX_WEIGHT, Log

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]

DIRECT, DOUBLY_ROBUST = "direct", "dr"
WEIGHTED = ("ips", "snips", "clipped", DOUBLY_ROBUST)
"""The estimators that need propensities."""
PATH = "path"
"""What is estimated of a policy's own path, and not of the logged decisions (`path.py`)."""
ESTIMATORS = (DIRECT, *WEIGHTED, PATH)
IMAGINARY = 10.0
"""Imaginary drafts that every cell and token has, with the hazard of all cells together."""
MATCHES = (1, 3, 6)
"""Lengths of a match at which another cell begins."""
LAST_DRAFTS = 4
"""What became of a request's last neural draft: none yet, rejected, accepted in part, in whole."""
CELLS = LAST_DRAFTS * (len(MATCHES) + 1)


class Sums(NamedTuple):
    """Sums over each request's decisions; c: cells, i and j: neural tokens from 1 on."""

    decisions: Array
    """(requests)"""
    base: Array
    seconds: Array
    reached: Array
    """(requests, c, i) drafts whose token i was judged."""
    taken: Array
    """(requests, c, i) those whose token i was accepted."""
    shown: Array
    """(requests) gains that the log shows."""
    hidden: Array
    """(requests, c, k, j) gains at token j that were not shown, as all k drafted were accepted."""
    wanted: Array
    """(requests, c, j) gains at token j."""
    weighed: Array
    """(requests, j) gains at token j by weight, whether they came or not."""
    came: Array
    """(requests, j) those that came."""
    clipped: Array
    """(requests) those that came, by clipped weights."""
    judged: Array
    """(requests, c, i, j) gains at token j by the weight of token i, where i was judged."""
    accepted: Array
    """(requests, c, i, j) those where i was accepted."""


@dataclass(frozen=True, slots=True)
class Support:
    """How much of a target policy's outcome a log shows."""

    revealed: float
    """Share of decisions whose outcome the text or the log shows."""
    unsupported: float
    """Share of decisions whose outcome the logging policy had no chance to show."""
    effective: float
    """Effective number of decisions of the weighted estimates."""
    reached: Ints
    """How often the log shows whether neural token 1, 2, .. was accepted."""


def cells_of(log: Log) -> Ints:
    """The survival model's cell of every decision, from what is known before it."""
    match = log.recording.columns.match[log.at]
    drafts = np.flatnonzero(log.neural_len > 0)
    state = np.zeros(len(match), np.int64)
    accepted, drafted = log.neural_accepted[drafts], log.neural_len[drafts]
    state[drafts] = np.where(accepted == 0, 1, np.where(accepted < drafted, 2, 3))
    # The last draft before each decision, of the same request.
    last = np.full(len(match), -1)
    last[drafts] = drafts
    last = np.concatenate([[-1], np.maximum.accumulate(last)[:-1]])
    known = last >= log.first[log.request]
    return (np.digitize(match, MATCHES) * LAST_DRAFTS + np.where(known, state[last], 0)).astype(
        np.int32
    )


def support_of(log: Log, outcomes: Outcomes, chosen: Bools) -> Support:
    """How much of the outcomes of the chosen decisions the log shows."""
    depth, drafted = outcomes.depth[chosen], log.neural_len[chosen]
    taken, left = log.neural_accepted[chosen], log.left[chosen]
    wants = depth > 0
    deep_enough = depth <= drafted
    # A policy of unknown propensities may have had no choice.
    reach = log.reach[chosen][np.arange(len(depth)), np.maximum(depth, 1) - 1]
    reach = np.where(np.isnan(reach), deep_enough, reach)
    weight = np.divide(wants & deep_enough, reach, out=np.zeros(len(depth)), where=reach > 0)
    weight[~wants] = 1.0
    counts = np.arange(1, outcomes.gain.shape[1] + 1)[:, None]
    judged = (drafted >= counts) & (taken >= counts - 1) & (left > counts)
    return Support(
        float((~wants | deep_enough | (taken < drafted)).mean()),
        float((wants & (reach == 0)).mean()),
        float(weight.sum() ** 2 / max(np.square(weight).sum(), 1e-12)),
        judged.sum(axis=1).astype(np.int32),
    )


def sums_of(log: Log, outcomes: Outcomes, cells: Ints) -> Sums:
    """The sums over each request from which everything is estimated."""
    tokens = outcomes.gain.shape[1]
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("reached", "taken", "wanted"), (CELLS, tokens)),
        "hidden": (CELLS, tokens + 1, tokens),
        **dict.fromkeys(("weighed", "came"), (tokens,)),
        **dict.fromkeys(("judged", "accepted"), (CELLS, tokens, tokens)),
    }
    requests = len(log.recording)
    sums = Sums(**{name: np.zeros((requests, *shapes.get(name, ()))) for name in Sums._fields})
    _add(
        log.request,
        cells,
        log.left,
        log.neural_len,
        log.neural_accepted,
        np.nan_to_num(log.reach),
        outcomes.base,
        outcomes.gain,
        outcomes.seconds,
        sums,
    )
    return sums


@compiled
def _add(
    request: Ints,
    cells: Ints,
    left: Ints,
    drafted: Ints,
    taken: Ints,
    reach: Array,
    base: Array,
    gain: Array,
    seconds: Array,
    sums: Sums,
) -> None:
    tokens = gain.shape[1]
    for row in range(request.shape[0]):
        r, c, k = request[row], cells[row], min(drafted[row], tokens)
        a = min(taken[row], k)
        sums.decisions[r] += 1
        sums.base[r] += base[row]
        sums.seconds[r] += seconds[row]
        for j in range(1, tokens + 1):
            g = gain[row, j - 1]
            weight = 1 / reach[row, j - 1] if j <= k and reach[row, j - 1] > 0 else 0.0
            if j <= k and a >= j - 1 and j < left[row]:
                sums.reached[r, c, j - 1] += 1
                sums.taken[r, c, j - 1] += a >= j
                for deeper in range(j - 1, tokens):
                    worth = weight * gain[row, deeper]
                    sums.judged[r, c, j - 1, deeper] += worth
                    if a >= j:
                        sums.accepted[r, c, j - 1, deeper] += worth
            sums.wanted[r, c, j - 1] += g
            sums.weighed[r, j - 1] += weight * g
            if j <= a:
                sums.shown[r] += g
                sums.came[r, j - 1] += weight * g
                sums.clipped[r] += min(weight, MAX_WEIGHT) * g
            if j > k and a == k:
                sums.hidden[r, c, k, j - 1] += g


def totals_of(sums: Sums, counts: Array) -> Sums:
    """The sums of samples in which each request stands so many times: (samples, requests)."""
    drawn = counts.any(axis=0)
    return Sums._make(np.tensordot(counts[:, drawn], each[drawn], axes=1) for each in sums)


def emitted_tokens(totals: Sums) -> dict[str, Array]:
    """Emitted tokens of all decisions by every estimator, for each sample of `totals_of`."""
    reached, taken = totals.reached, totals.taken
    pooled = taken.sum(1) / np.maximum(reached.sum(1), 1.0)
    hazard = (taken + IMAGINARY * pooled[:, None]) / (reached + IMAGINARY)
    onward = _onward(hazard)
    wanted = totals.wanted.sum(1)
    # A token that no draft of the sample reached has no weight, and its gain is not known.
    normalised = wanted * totals.came / np.where(totals.weighed > 0, totals.weighed, np.nan)
    error = totals.accepted - hazard[:, :, :, None] * totals.judged
    return {
        "direct": totals.base + totals.shown + (totals.hidden * onward).sum((1, 2, 3)),
        "ips": totals.base + totals.came.sum(1),
        "snips": totals.base + np.where(wanted > 0, normalised, 0.0).sum(1),
        "clipped": totals.base + totals.clipped,
        "dr": totals.base
        + (totals.wanted * onward[:, :, 0]).sum((1, 2))
        + (error * onward[:, :, 1:]).sum((1, 2, 3)),
    }


def _onward(hazard: Array) -> Array:
    """(samples, c, i, j) the probability that tokens i + 1 to j are accepted if the first i were.

    It is 1 for j = i, and 0 for j < i, of which nothing is asked.
    """
    samples, cells, tokens = hazard.shape
    onward = np.zeros((samples, cells, tokens + 1, tokens))
    for first in range(tokens + 1):
        if first:
            onward[:, :, first, first - 1] = 1.0
        onward[:, :, first, first:] = np.cumprod(hazard[:, :, first:], axis=2)
    return onward
