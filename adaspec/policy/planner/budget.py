"""How many drafted tokens a step verifies, of all rows together, and which.

The *budget* is the B that maximises

    rows + sum of the B largest survivals - rate * time of a step of rows + B tokens

where the time is what the cost table says. Tokens that fill a captured size are free.

In a sync engine the budget is made of the survivals of the very step. In an async one the step is
prepared while the one before it runs, so the budget is made of a running mean over the last
reports: of the largest survival, of the second largest, and so on. Where more or fewer rows run
than before, it is stretched to their number.

The survival of the last token that a budget took in is the price of a token in the next step, 0
where there was room for all: what is verified beside it has to be likelier.

Nothing here needs a model: it runs where an engine's scheduler does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, padded, target_s
from adaspec.jit import compiled
from adaspec.policy.planner.forwards import ONE_FORWARD, new_number, new_pause

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Record = NDArray[Any]

_SHARE = 0.3
"""Weight of the last report in the mean of all."""
_PRIOR_WANT = 4.0
"""What a row is taken to want where nothing is known."""
_FADED = 1e-4
"""A mean survival that is no larger is none."""

_STEP = np.dtype([("budget", "i8"), ("price", "f8"), ("offered", "i8"), ("rows", "f8")])


class BatchState(NamedTuple):
    """What is remembered of earlier steps, and decided for the next."""

    forwards_by_load: Array
    """(loads, 2) load and the forwards there at first; loads ascending."""
    number: Record
    """How many forwards run: one `forwards.NUMBER`."""
    pause: Record
    """Whether the drafter is paused: one `forwards.PAUSE`."""
    step: Record
    """One record: the budget of this step, the price of a token in it, how many tokens the last
    report offered, and the mean number of rows of the reports, 0 before the first."""
    survival: Array
    """The last report's survivals, descending; as many as were offered."""
    mean: Array
    """The running mean of those by rank."""


def new_batch_state(slots: int, cap: int, forwards: Array = ONE_FORWARD) -> BatchState:
    """A batch state that has seen nothing yet."""
    return BatchState(
        forwards_by_load=np.ascontiguousarray(forwards, np.float64),
        number=new_number(),
        pause=new_pause(),
        step=np.zeros(1, _STEP),
        survival=np.zeros(slots * cap),
        mean=np.zeros(slots * cap),
    )


@compiled
def best_budget(
    costs: Costs, rate: float, tokens: int, survival: Array, offered: int, stretch: float
) -> int:
    """The budget that is worth most beside so many tokens, of `offered` descending survivals.

    Stretched by 2, every one stands for two tokens of the same survival.
    """
    most = int(np.floor(offered * stretch + 0.5))
    best, best_value, value = 0, -rate * target_s(costs, tokens), 0.0
    for count in range(1, most + 1):
        value += survival[min(int((count - 0.5) / stretch), offered - 1)]
        worth = value - rate * target_s(costs, tokens + count)
        if worth > best_value:
            best, best_value = count, worth
    return best


@compiled
def decide_budget(
    batch_state: BatchState, costs: Costs, rate: float, running: int, prompt_tokens: int, cap: int
) -> int:
    """How many drafted tokens an async engine's next step verifies.

    So many rows run in it, and so many tokens of prompts are read.
    """
    step, offered = batch_state.step[0], 0
    while offered < batch_state.mean.shape[0] and batch_state.mean[offered] > _FADED:
        offered += 1
    best, tokens = int(_PRIOR_WANT * running), running + prompt_tokens
    if step.rows > 0:
        best = best_budget(costs, rate, tokens, batch_state.mean, offered, running / step.rows)
    # What fills a captured size is free.
    return min(int(padded(costs, tokens + best)) - tokens, running * cap)


@compiled
def rank(batch_state: BatchState, survival: Array, lengths: Ints) -> None:
    """Sort what the rows of a step offer: their drafts' survivals, as far as `lengths` says."""
    offered, count = np.empty(lengths.sum()), 0
    for row in range(lengths.shape[0]):
        for j in range(lengths[row]):
            offered[count] = survival[row, j]
            count += 1
    batch_state.survival[:count] = -np.sort(-offered)
    batch_state.step[0].offered = count


@compiled
def ranked_budget(batch_state: BatchState, costs: Costs, rate: float, tokens: int) -> int:
    """The budget that is worth most of what was ranked last, beside so many tokens."""
    return best_budget(costs, rate, tokens, batch_state.survival, batch_state.step[0].offered, 1.0)


@compiled
def note_ranked(batch_state: BatchState, rows: int) -> None:
    """Take what was ranked last into the running mean."""
    step = batch_state.step[0]
    share = _SHARE if step.rows > 0 else 1.0
    for at in range(batch_state.mean.shape[0]):
        if at >= step.offered and batch_state.mean[at] <= _FADED:
            batch_state.mean[at] = 0.0
            break
        now = batch_state.survival[at] if at < step.offered else 0.0
        batch_state.mean[at] += share * (now - batch_state.mean[at])
    step.rows += share * (rows - step.rows)


@compiled
def keep_likeliest(batch_state: BatchState, survival: Array, lengths: Ints, budget: int) -> None:
    """Cut ranked drafts to the `budget` likeliest tokens; the price of the next step follows.

    Of equally likely tokens the first rows' are taken.
    """
    step = batch_state.step[0]
    step.price = 0.0
    if lengths.sum() <= budget:
        return
    least = batch_state.survival[max(budget - 1, 0)]
    step.price, left = least, budget
    for row in range(lengths.shape[0]):
        for j in range(lengths[row]):
            left -= survival[row, j] > least
    for row in range(lengths.shape[0]):
        taken = 0
        while taken < lengths[row] and (
            survival[row, taken] > least or (survival[row, taken] == least and left > 0)
        ):
            left -= survival[row, taken] == least
            taken += 1
        lengths[row] = taken
