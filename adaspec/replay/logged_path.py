"""A static rule's own path through logged texts: how many steps, and how long they take.

The text is the same whoever drafts, so text and look-up tell what copied tokens come to at every
position. Where a neural draft would have led, the log shows at the positions at which the drafter
ran, and as far; beyond and elsewhere a survival model says how likely each of its tokens is
accepted. So each position has a probability of being one of the rule's decisions: 1 at the first,
and further on that of arriving there from an earlier one.

The model is Kaplan and Meier's hazard by the length of the match, shrunk to each request's own
hazards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Costs, StepShape, step_s
from adaspec.jit import compiled
from adaspec.policy.static import StaticRule
from adaspec.replay.logged import Log
from adaspec.replay.paths import rule_columns

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]

MATCHES = (1, 3, 6)
"""Lengths of a match at which another cell of the survival model begins."""
IMAGINARY = 10.0
"""Imaginary drafts that every cell and token has, with the hazard of all cells together."""


class Plans(NamedTuple):
    """A rule's plan at every position: those of request r are rows first[r] .. first[r + 1]."""

    first: Longs
    cell: Longs
    """The survival model's."""
    seconds: Array
    emitted: Longs
    """Emitted tokens if no neural one is accepted."""
    neural: Longs
    """Neural tokens whose acceptance changes what is emitted."""
    beyond: Longs
    """Copied tokens that are emitted as well if all neural ones are accepted."""


class Hazards(NamedTuple):
    """How many drafts the log shows up to a neural token, and in how many it was accepted."""

    reached: Array
    taken: Array


class Totals(NamedTuple):
    """What is expected of all requests of each sample."""

    tokens: Array
    seconds: Array
    steps: Array
    shown: Array
    """Steps whose outcome text or log shows."""


def row_of(log: Log) -> Longs:
    """Each logged step's row of `Plans`, which leave out the position at which nothing is known."""
    return log.at - log.request - 1


@compiled
def seconds_of(costs: Costs, running: Longs, context: Longs, drafts: Longs, holds: Bools) -> Array:
    """What steps take, shared among as many copies of the request as ran.

    `drafts` are (steps, 3): copied, neural and spliced tokens.
    """
    seconds = np.empty(running.shape[0])
    for step in range(running.shape[0]):
        rows, (copied, neural, spliced) = running[step], drafts[step]
        whole = rows * context[step], rows * copied, rows * neural, rows * spliced
        seconds[step] = step_s(costs, StepShape(rows, *whole, neural, holds[step], 0)) / rows
    return seconds


def plans_of(log: Log, rule: StaticRule, cap: int, cost: CostModel) -> Plans:
    """A rule's plans at every position, under the load of the latest logged step."""
    columns = rule_columns(log.recording, rule)
    sizes = columns.length - 1
    request = np.repeat(np.arange(len(sizes)), sizes)
    at = np.arange(len(request)) + request + 1
    position = at - columns.offset[request]
    left = columns.length[request] - position
    copies = (rule.ngram_len > 0) & (columns.match[at] >= rule.min_match)
    copied = np.where(copies, np.minimum(columns.available[at], min(rule.ngram_len, cap)), 0)
    neural = np.where(copies, 0, min(rule.neural_len, cap))
    behind = np.minimum(at + neural, len(columns.match) - 1)
    # As in replays without drafted tokens: what is found behind the true ones stands for the rest.
    splices = (neural > 0) & (neural < left) & (columns.match[behind] >= rule.splice_match)
    room = np.minimum(min(rule.splice_len, cap), cap - neural)
    spliced = np.where(splices, np.minimum(room, columns.available[behind]), 0)
    beyond = np.minimum(np.minimum(spliced, columns.run[behind]), left - neural - 1)
    # Before a request's first logged step its load is that of this step.
    latest = np.searchsorted(log.at, at, side="right") - 1
    running = log.running[np.maximum(latest, log.first[request])].astype(np.int64)
    drafts = np.stack([copied, neural, spliced], axis=1).astype(np.int64)
    context, holds = columns.prompt[request] + position, np.full(len(at), rule.neural_len > 0)
    return Plans(
        np.concatenate([[0], np.cumsum(sizes)]),
        np.digitize(log.recording.columns.match[at], MATCHES),
        seconds_of(cost.constants(), running, context, drafts, holds),
        np.minimum(np.minimum(columns.run[at], copied) + 1, left).astype(np.int64),
        np.minimum(neural, left - 1).astype(np.int64),
        np.maximum(beyond, 0).astype(np.int64),
    )


def path_of(log: Log, plans: Plans, counts: Array) -> Totals:
    """What is expected of samples in which each request stands so often: (samples, requests)."""
    known = np.zeros((len(plans.neural), 2), np.int64)
    known[row_of(log)] = np.stack([log.shown, log.right], axis=1)
    own = _hazards(log, plans)
    reached, taken = (np.tensordot(counts, each, 1) for each in own)
    pooled = taken.sum(1) / np.maximum(reached.sum(1), 1.0)
    by_cell = (taken + IMAGINARY * pooled[:, None]) / (reached + IMAGINARY)
    totals = Totals(*np.zeros((len(Totals._fields), len(counts))))
    _walk(counts, plans, known, by_cell, Hazards(*(each.sum(1) for each in own)), totals)
    return totals


def _hazards(log: Log, plans: Plans) -> Hazards:
    """By (request, cell, token); behind the text's end, nothing is shown."""
    shape = len(log.recording), len(MATCHES) + 1, int(plans.neural.max(initial=0))
    found, cell = Hazards(np.zeros(shape), np.zeros(shape)), plans.cell[row_of(log)]
    for token in range(shape[-1]):
        reached = log.reached(token + 1)
        taken = reached & (log.right > token)
        np.add.at(found.reached[:, :, token], (log.request[reached], cell[reached]), 1)
        np.add.at(found.taken[:, :, token], (log.request[taken], cell[taken]), 1)
    return found


@compiled
def _walk(
    counts: Array, plans: Plans, known: Longs, by_cell: Array, own: Hazards, totals: Totals
) -> None:
    """Add up what is expected; `known` are each row's tokens shown, and right ones of these."""
    for sample in range(counts.shape[0]):
        for r in range(plans.first.shape[0] - 1):
            count, first = counts[sample, r], plans.first[r]
            size = plans.first[r + 1] - first
            if count == 0:
                continue
            visits = np.zeros(size + 1)
            visits[0] = 1.0
            totals.tokens[sample] += count * size
            for p in range(size):
                visit, row = visits[p], first + p
                if visit == 0:
                    continue
                neural, emitted, chance = plans.neural[row], plans.emitted[row], 1.0
                shown, right = known[row]
                totals.seconds[sample] += count * visit * plans.seconds[row]
                totals.steps[sample] += count * visit
                if neural <= shown or right < shown:
                    totals.shown[sample] += count * visit
                for j in range(neural):
                    if j < shown:
                        more = 1.0 if j < right else 0.0
                    else:
                        likely = own.taken[r, j] + IMAGINARY * by_cell[sample, plans.cell[row], j]
                        more = likely / (own.reached[r, j] + IMAGINARY)
                    visits[min(p + emitted, size)] += visit * chance * (1 - more)
                    chance *= more
                    emitted += 1
                if neural > 0:
                    emitted += plans.beyond[row]
                visits[min(p + emitted, size)] += visit * chance
