"""What target policies' plans come to at logged decisions, but for what only a drafter can tell.

The text tells what every copied draft would have brought. Of a neural draft of K tokens it tells
what accepting each of them is worth: the outcome is `base` plus, for each j of 1 to K, `gain[j]`
where at least j tokens would have been accepted. Behind the last of them a copied continuation, a
splice, counts as part of `gain[K]`. A step takes what the cost model says of as many copies of the
request as ran at the time, and each of them has its share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Costs, StepShape, forward_s, step_s
from adaspec.jit import compiled
from adaspec.policy.static import StaticRule
from adaspec.replay.logged import MAX_REACH, Log
from adaspec.replay.paths import rule_columns

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


class Plans(NamedTuple):
    """What is proposed at every logged decision."""

    copied: Ints
    right: Ints
    """How many of the copied tokens are the text's."""
    neural: Ints
    spliced: Ints
    """Tokens copied behind neural ones, as the text has them."""
    spliced_right: Ints
    forwards: Ints
    holds: Bools
    """Whether requests hold the neural drafter."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What plans come to, per logged decision; first indices of `gain` are decisions."""

    base: Array
    """Emitted tokens if no neural token is accepted."""
    gain: Array
    """(decisions, tokens) further tokens emitted if at least 1, 2, .. neural ones are accepted."""
    seconds: Array
    """The request's share of the step."""

    @property
    def depth(self) -> Ints:
        """How many neural tokens must be judged to know each outcome; 0 if the text tells it."""
        counts = np.arange(1, self.gain.shape[1] + 1)
        deepest: Ints = np.max(np.where(self.gain > 0, counts, 0), axis=1, initial=0)
        return deepest


def plans_of_rule(log: Log, rule: StaticRule, cap: int) -> Plans:
    """A static rule's plans at the logged decisions."""
    columns, at = rule_columns(log.recording, rule), log.at
    none = np.zeros(len(at), np.int32)
    copies = (rule.ngram_len > 0) & (columns.match[at] >= rule.min_match)
    available = np.minimum(columns.available[at], cap)
    copied = np.where(copies, np.minimum(rule.ngram_len, available), 0).astype(np.int32)
    neural = np.where(copies, 0, min(rule.neural_len, cap)).astype(np.int32)
    behind = np.minimum(at + neural, len(columns.match) - 1)
    # As in replays without drafted tokens: what is found behind the true ones stands for the rest.
    splices = (neural > 0) & (neural < log.left) & (columns.match[behind] >= rule.splice_match)
    room = np.minimum(min(rule.splice_len, cap), cap - neural)
    spliced = np.where(splices, np.minimum(room, columns.available[behind]), none)
    return Plans(
        copied,
        np.minimum(columns.run[at], copied).astype(np.int32),
        neural,
        spliced.astype(np.int32),
        np.minimum(spliced, columns.run[behind]).astype(np.int32),
        neural.copy(),
        np.full(len(at), rule.neural_len > 0),
    )


def outcomes_of(log: Log, plans: Plans, cost: CostModel) -> Outcomes:
    """What plans come to at the logged decisions, at the logged load."""
    left, neural = log.left, plans.neural
    counts = np.arange(1, min(int(neural.max(initial=0)), MAX_REACH) + 1)
    gain = (counts <= np.minimum(neural, left - 1)[:, None]).astype(np.float64)
    spliced = np.flatnonzero(plans.spliced_right > 0)
    whole = neural[spliced] + 1
    further = np.minimum(whole + plans.spliced_right[spliced], left[spliced]) - whole
    gain[spliced, neural[spliced] - 1] += np.maximum(further, 0)
    return Outcomes(
        np.minimum(plans.right + 1, left).astype(np.float64),
        gain,
        _seconds(cost.constants(), log.running, log.context_tokens, plans),
    )


def alone_s(log: Log, plans: Plans, cost: CostModel) -> Array:
    """The seconds that a neural draft costs beyond its share, if nobody else in the step has one.

    A forward runs for the whole batch, and only its share is in `Outcomes.seconds`.
    """
    return _unshared(cost.constants(), log.running, log.context_tokens, plans.forwards)


@compiled
def _seconds(costs: Costs, running: Ints, context_tokens: Ints, plans: Plans) -> Array:
    seconds = np.empty(running.shape[0])
    for row in range(running.shape[0]):
        rows = running[row]
        shape = StepShape(
            rows,
            rows * context_tokens[row],
            rows * plans.copied[row],
            rows * plans.neural[row],
            rows * plans.spliced[row],
            plans.forwards[row],
            plans.holds[row],
            0,
        )
        seconds[row] = step_s(costs, shape) / rows
    return seconds


@compiled
def _unshared(costs: Costs, running: Ints, context_tokens: Ints, forwards: Ints) -> Array:
    seconds = np.empty(running.shape[0])
    for row in range(running.shape[0]):
        rows = running[row]
        beyond = max(forwards[row] - costs.keep_alive_forwards, 0)
        seconds[row] = (
            (rows - 1) / rows * beyond * forward_s(costs, rows, rows * context_tokens[row])
        )
    return seconds
