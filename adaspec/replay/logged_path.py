"""A static rule's own path through logged texts: how many steps, and how long they take.

The text is the same whoever drafts, so text and look-up tell what copied tokens come to at every
position. Where a neural draft would have led, the log shows at the positions at which the drafter
ran, and as far; beyond and elsewhere a survival model says how likely each of its tokens is
accepted: Kaplan and Meier's hazard by the length of the match, shrunk to each request's own.
So each position has a probability of being one of the rule's decisions: 1 at the first, and further
on that of arriving there from an earlier one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Costs, decoding_shape, step_s
from adaspec.jit import compiled
from adaspec.policy.static import StaticRule
from adaspec.replay.logged import Log
from adaspec.replay.paths import rule_columns
from adaspec.replay.recording import Columns

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]

MATCHES = (1, 3, 6)
"""Lengths of a match at which another cell of the survival model begins."""
IMAGINARY = 10.0
"""Imaginary drafts that every cell and token has, with the hazard of all cells together."""


class Plans(NamedTuple):
    """A rule's plan at every flat position of the recording."""

    seconds: Array
    emitted: Longs
    """Emitted tokens if no neural one is accepted."""
    neural: Longs
    """Neural tokens whose acceptance changes what is emitted."""
    beyond: Longs
    """Copied tokens that are emitted as well if all neural ones are accepted."""


@compiled
def seconds_of(costs: Costs, running: Longs, context: Longs, drafts: Longs, holds: Bools) -> Array:
    """What steps take, shared among as many copies of the request as ran.

    `drafts` are (steps, 3): copied, neural and spliced tokens.
    """
    seconds = np.empty(running.shape[0])
    for step in range(running.shape[0]):
        rows, forwards, whole = running[step], drafts[step, 1], running[step] * drafts[step].sum()
        shape = decoding_shape(rows, rows * context[step], whole, forwards, holds[step])
        seconds[step] = step_s(costs, shape) / rows
    return seconds


def plans_of(log: Log, rule: StaticRule, cap: int, cost: CostModel) -> Plans:
    """A rule's plans at every position, under the load of the latest logged step."""
    columns, most = rule_columns(log.recording, rule), min(rule.neural_len, cap)
    at = np.arange(len(columns.match))
    request = np.repeat(np.arange(len(columns.length)), columns.length)
    position = at - columns.offset[request]
    left = columns.length[request] - position
    copies = (rule.ngram_len > 0) & (columns.match >= rule.min_match)
    copied = np.where(copies, np.minimum(columns.available, min(rule.ngram_len, cap)), 0)
    neural = np.where(copies, 0, most)
    behind = np.minimum(at + neural, len(at) - 1)
    # As in replays without drafted tokens: what is found behind the true ones stands for the rest.
    splices = (neural > 0) & (neural < left) & (columns.match[behind] >= rule.splice_min_match)
    room = min(rule.splice_len, cap - most)
    spliced = np.where(splices, np.minimum(columns.available[behind], room), 0)
    beyond = np.minimum(np.minimum(spliced, columns.run[behind]), left - neural - 1)
    # Before a request's first logged step its load is that of this step.
    latest = np.searchsorted(log.at, at, side="right") - 1
    running = log.steps["running"][np.maximum(latest, log.first[request])].astype(np.int64)
    drafts = np.stack([copied, neural, spliced], axis=1).astype(np.int64)
    context, holds = columns.prompt[request] + position, np.full(len(at), most > 0)
    return Plans(
        seconds_of(cost.constants(), running, context, drafts, holds),
        np.minimum(np.minimum(columns.run, copied) + 1, left).astype(np.int64),
        np.minimum(neural, left - 1).astype(np.int64),
        np.maximum(beyond, 0).astype(np.int64),
    )


def path_of(log: Log, plans: Plans, counts: Array) -> Array:
    """Expected tokens, seconds, steps, and steps whose outcome text or log shows, by sample.

    In a sample each request stands as often as `counts` says, which is (samples, requests).
    """
    columns = log.recording.columns
    known = np.zeros((len(plans.neural), 2), np.int64)
    known[log.at] = np.stack([log.steps["shown"], log.steps["right"]], axis=1)
    cell = np.digitize(columns.match, MATCHES)
    own = np.zeros((2, len(log.recording), len(MATCHES) + 1, int(plans.neural.max(initial=0))))
    (own_reached, own_taken), at = own, (log.request, cell[log.at])
    for token in range(own.shape[-1]):
        shows = log.reached(token + 1)
        np.add.at(own_reached[:, :, token], at, shows)
        np.add.at(own_taken[:, :, token], at, shows & (log.steps["right"] > token))
    reached, taken = (np.tensordot(counts, each, 1) for each in own)
    pooled = taken.sum(1) / np.maximum(reached.sum(1), 1.0)
    by_cell = (taken + IMAGINARY * pooled[:, None]) / (reached + IMAGINARY)
    taken, reached = own_taken.sum(1, keepdims=True), own_reached.sum(1, keepdims=True)
    totals = []
    for count, hazards in zip(counts, by_cell, strict=True):
        likely = (taken + IMAGINARY * hazards) / (reached + IMAGINARY)
        totals.append(_walk(columns, count, plans, cell, known, likely))
    return np.array(totals).T


@compiled
def _walk(
    columns: Columns, counts: Array, plans: Plans, cell: Longs, known: Longs, likely: Array
) -> tuple[float, float, float, float]:
    """What is expected of a sample; `known` says how many tokens are shown, and right of these."""
    offset, length = columns.offset, columns.length
    tokens = seconds = steps = steps_shown = 0.0
    for r in np.flatnonzero(counts):
        visits = np.zeros(length[r] + 1)
        visits[1] = 1.0
        tokens += counts[r] * (length[r] - 1)
        for p in range(1, length[r]):
            visit, at = visits[p], offset[r] + p
            if visit == 0:
                continue
            neural, emitted, chance = plans.neural[at], plans.emitted[at], 1.0
            shown, right = known[at]
            seconds += counts[r] * visit * plans.seconds[at]
            steps += counts[r] * visit
            if neural <= shown or right < shown:
                steps_shown += counts[r] * visit
            for j in range(neural):
                more = likely[r, cell[at], j]
                if j < shown:
                    more = 1.0 if j < right else 0.0
                visits[min(p + emitted, length[r])] += visit * chance * (1 - more)
                chance *= more
                emitted += 1
            if neural > 0:
                emitted += plans.beyond[at]
            visits[min(p + emitted, length[r])] += visit * chance
    return tokens, seconds, steps, steps_shown
