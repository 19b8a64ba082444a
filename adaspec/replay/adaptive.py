"""Adaptive verification, of neural drafts (`budget:K`) and of copies (`online:K`).

What of a draft is verified follows from what has been accepted so far of drafts like it, of all
requests, and from what steps take. Drafts of one *kind* are counted together, by position: copies
by where they are from and how long their match is, neural drafts all alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost import ASYNC
from adaspec.cost.model import CostModel, Costs, StepShape, padded, step_s, step_shape
from adaspec.draft.matches import IN_RING, START, Ints
from adaspec.jit import compiled
from adaspec.policy.budget import (
    BatchState,
    keep_likeliest,
    new_state,
    note_offered,
    ranked,
)
from adaspec.policy.static import Budgeted, Online
from adaspec.replay.loop import (
    Doubles,
    Longs,
    Loop,
    context_tokens,
    finish_step,
    goes_on,
    new_loop,
    running,
)
from adaspec.replay.recording import Recording, Shorts

_MEMORY, _RATE = 0.999, 0.3
_TRIED, _HIT, _BIAS, _SLOPE, _GRADIENT = range(5)
"""What is believed, by kind and position."""
MATCHES = np.array([2, 3, 4, 5, 7, 10, 16, 24])
"""Where one kind of copies, by the length of the match, ends and the next begins."""


class Offers(NamedTuple):
    """What can be drafted, by flat position."""

    kind: Longs
    length: Shorts
    right: Shorts
    """How many of the tokens the target would accept."""
    odds: NDArray[np.float32]
    """(positions, tokens) what the drafter says of its own; empty where nothing does."""


def begin(kinds: int, longest: int) -> Doubles:
    """What is believed at first: 1.4 of 2 drafts were accepted."""
    state = np.zeros((5, kinds, longest))
    state[_TRIED], state[_HIT], state[_BIAS] = 2.0, 1.4, np.log(0.7 / 0.3)
    return state


@compiled
def survivals(state: Doubles, kinds: Longs, odds: Doubles, lengths: Longs) -> Doubles:
    """(rows, positions) how likely drafts of these kinds and lengths survive.

    That follows from the odds of confidences; where there are none, from what was accepted so far.
    """
    survival = np.zeros((kinds.shape[0], state.shape[2]))
    for row in range(kinds.shape[0]):
        s = 1.0
        for j in range(lengths[row]):
            if len(odds):
                s *= 1.0 / (
                    1.0 + np.exp(-(state[_BIAS, 0, j] + state[_SLOPE, 0, 0] * odds[row, j]))
                )
            else:
                s *= state[_HIT, kinds[row], j] / state[_TRIED, kinds[row], j]
            survival[row, j] = s
    return survival


@compiled
def best_count(costs: Costs, drafted: StepShape, offered: Doubles, stretch: float) -> int:
    """How many of what is offered, descending survivals, bring most tokens per second if verified.

    Stretched by 2, every one stands for two tokens of the same survival.
    """
    rows, context, forwards = drafted.rows, drafted.context_tokens, drafted.forwards
    expected, count, held = float(rows), 0, drafted.holds_neural
    best = expected / step_s(costs, step_shape(rows, context, 0, forwards, held))
    for n in range(1, int(offered.shape[0] * stretch) + 1):
        more = offered[int((n - 0.5) / stretch)]
        if more == 0:
            break
        expected += more
        value = expected / step_s(costs, step_shape(rows, context, n, forwards, held))
        if value > best:
            best, count = value, n
    return count


@compiled
def learn(state: Doubles, kinds: Longs, odds: Doubles, tried: Longs, accepted: Longs) -> None:
    """Count hits up to the first miss, with a gradient step for each of the odds."""
    for kind in range(state.shape[1]):
        for j in range(state.shape[2]):
            state[_TRIED, kind, j] = 1e-3 + (state[_TRIED, kind, j] - 1e-3) * _MEMORY
            state[_HIT, kind, j] = 0.7e-3 + (state[_HIT, kind, j] - 0.7e-3) * _MEMORY
    for row in range(len(tried)):
        for j in range(min(tried[row], accepted[row] + 1)):
            hit = accepted[row] > j
            state[_TRIED, kinds[row], j] += 1.0
            state[_HIT, kinds[row], j] += hit
            if len(odds):
                c = odds[row, j]
                said = 1.0 / (1.0 + np.exp(-(state[_BIAS, 0, j] + state[_SLOPE, 0, 0] * c)))
                error = hit - said
                state[_GRADIENT, 0, j] += error * error
                state[_BIAS, 0, j] += _RATE * error / np.sqrt(1.0 + state[_GRADIENT, 0, j])
                state[_SLOPE, 0, 1] += error * error * c * c
                state[_SLOPE, 0, 0] += _RATE * error * c / np.sqrt(1.0 + state[_SLOPE, 0, 1])


@compiled
def _run(
    loop: Loop,
    offers: Offers,
    forwards: int,
    state: Doubles,
    costs: Costs,
    before: BatchState,
    lags: bool,
) -> None:
    """Run the loop to its end.

    Where it lags, as many tokens are verified as would have been best of what rows offered before.
    """
    while goes_on(loop):
        rows = running(loop)
        count, context, depth = rows.shape[0], context_tokens(rows), offers.odds.shape[1]
        kinds, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
        odds = np.zeros((count if depth > 0 else 0, depth))
        for row in range(count):
            at = rows[row].at
            kinds[row], lengths[row] = offers.kind[at], offers.length[at]
            for j in range(depth):
                odds[row, j] = offers.odds[at, j]
        drafted = step_shape(count, context, 0, forwards, forwards > 0)
        survival = survivals(state, kinds, odds, lengths)
        offered, paid = ranked(survival, lengths), 0
        if lags and before.step[0].rows > 0:
            stretch = count / before.step[0].rows
            paid = best_count(costs, drafted, before.mean, stretch)
            # What fills a captured size is free.
            paid = int(padded(costs, count + paid)) - count
            keep_likeliest(offered, survival, lengths, paid)
        else:
            best = best_count(costs, drafted, offered, 1.0)
            keep_likeliest(offered, survival, lengths, best)
        if lags:
            note_offered(before, offered, count)
        tokens, taken, accepted = 0, 0, np.zeros(count, np.int64)
        for row in range(count):
            left = rows[row].end - rows[row].at
            accepted[row] = min(offers.right[rows[row].at], lengths[row])
            rows[row].emitted = min(accepted[row] + 1, left)
            tokens += lengths[row]
            taken += min(accepted[row], left)
        learn(state, kinds, odds, lengths, accepted)
        shape = step_shape(count, context, tokens, forwards, forwards > 0, paid)
        finish_step(loop, costs, shape, taken)


def neural_offers(recording: Recording, longest: int) -> Offers:
    """So many drafted tokens everywhere."""
    columns, positions = recording.columns, len(recording.columns.neural)
    odds = columns.confidence[:, : longest if columns.confidence.shape[1] >= longest else 0]
    lengths = np.full(positions, longest, np.int16)
    return Offers(np.zeros(positions, np.int64), lengths, columns.neural, odds)


def copied_offers(recording: Recording, longest: int) -> Offers:
    """What the match gives, at most so many tokens."""
    columns, in_ring = recording.columns, recording.facts[START] >= IN_RING
    kind = np.searchsorted(MATCHES, columns.match, side="right") + in_ring * (len(MATCHES) + 1)
    lengths = np.minimum(columns.available, longest).astype(np.int16)
    return Offers(kind, lengths, columns.run, columns.confidence[:, :0])


def run_adaptive(
    recording: Recording,
    policy: Budgeted | Online,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    engine: str,
    comes_s: Doubles | None = None,
) -> Loop:
    """The loop under adaptive verification, at its end."""
    longest, costs = min(policy.draft_len, cap), cost.without_deciding().constants()
    copies = isinstance(policy, Online)
    offers = copied_offers(recording, longest) if copies else neural_offers(recording, longest)
    state, forwards = begin(int(offers.kind.max()) + 1, longest), 0 if copies else longest
    loop = new_loop(recording.columns, order, concurrency, not copies, comes_s)
    before = new_state(concurrency, longest)
    _run(loop, offers, forwards, state, costs, before, copies and engine == ASYNC)
    return loop
