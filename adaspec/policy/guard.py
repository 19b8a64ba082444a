"""Whether the neural drafter earns its keep: while it does not, requests go without.

What the drafter is worth falls with the load, so the load of the moment says what to expect, and
what came of it by how much to correct that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import DRAFT_PROMPT, PER_TOKEN, forward_s, paid_forwards, verify_s
from adaspec.jit import compiled, inlined
from adaspec.policy.desk import (
    ANSWER_TOKENS,
    ANSWERS,
    CAME_OF_IT,
    CONTEXT,
    EXPECTED,
    HELD,
    HOLDING,
    LEANING,
    PATIENCE,
    PROBING,
    PROMPT_TOKENS,
    PROMPTS,
    RESTED,
    Desk,
)
from adaspec.policy.pace import rate_of

Array = NDArray[np.float64]

_UNLOADED, _FALL = 0.75, 4.2
"""Tokens that a row gains per step by the drafter where verifying is free, and how that falls with
a token's price at no speculation. An EAGLE-3 head's under the costs of a GPU and of a CPU; where
another drafter's differ, experience corrects them."""
_BELIEF = 100.0
"""Expected tokens that weigh as much as experience."""
_ROW_MEMORY = 0.9999
"""Per step of a row: what one brings varies far more than what is at stake."""
_INERTIA = 0.25
"""By this share the drafter must fall short to be given up, and pay more to be taken up again: a
batch of which some hold it pays its keep-alive for little."""
_ANSWER, _BELIEVED_ANSWERS = 128.0, 8.0
"""Tokens of an answer before any was seen, and how many answers that belief weighs."""
_REQUEST_MEMORY = 0.98
_LONGEST_PROBE = 200.0
_LEAST_PATIENCE, _MOST_PATIENCE = 8.0, 64.0


@inlined
def _usual_gain(cost: Array, rows: int, context: int) -> float:
    """Tokens per row and step that the drafter usually brings at this load, nothing paid."""
    price = cost[PER_TOKEN] * rows / verify_s(cost, rows, context)
    return _UNLOADED * np.exp(-_FALL * price)


@inlined
def _brought(guard: Array, cost: Array, rows: int, context: int) -> float:
    """Tokens per row and step that the drafter is expected to bring, nothing paid."""
    experience = (guard[CAME_OF_IT] + _BELIEF) / (guard[EXPECTED] + _BELIEF)
    return experience * _usual_gain(cost, rows, context)


@compiled
def watch(
    desk: Desk,
    cost: Array,
    rate: float,
    rows: int,
    holders: int,
    context: int,
    forwards: int,
    worth: float,
) -> None:
    """Take in what the drafter was worth to the rows that hold it: in tokens, no forward paid.

    Forwards beyond the keep-alive are shared by all rows, as if every one held it: one holder pays
    for a whole batch's, so its worth alone would never bring the drafter back.
    """
    guard = desk.guard
    guard[HOLDING] = 1.0 if holders > 0 else 0.0
    guard[CONTEXT] = context / rows
    if holders == 0:
        guard[RESTED] += 1.0
        guard[PROBING] = 0.0
        return
    more = paid_forwards(cost, forwards, True) - paid_forwards(cost, 0, True)
    fade = _ROW_MEMORY**holders
    came = worth - rate * more * forward_s(cost, context) * holders / rows
    guard[CAME_OF_IT] = guard[CAME_OF_IT] * fade + came
    guard[EXPECTED] = guard[EXPECTED] * fade + holders * _usual_gain(cost, rows, context)
    guard[HELD] = min(guard[HELD] + 1.0, _LONGEST_PROBE)
    guard[RESTED] = 0.0


@compiled
def admits(desk: Desk, knobs: Array, cost: Array, slot: int, prompt_tokens: int, rows: int) -> bool:
    """Whether the request that enters this slot, one of so many rows, shall hold the drafter.

    It shall where what the drafter brings such requests pays for their share of its keep-alive and
    for its reading of their prompts, and this one for its own. Where it does not, one request at a
    time still gets it, to notice when that changes: after a rest that is a multiple of the steps
    for which it was last held, and of those that an answer takes, doubled at every failure.
    """
    guard = desk.guard
    _count(desk, slot, prompt_tokens)
    context = int(rows * (guard[CONTEXT] if guard[CONTEXT] > 0 else prompt_tokens))
    rate = rate_of(desk, knobs, cost, rows, context)
    brought = _brought(guard, cost, rows, context)
    kept = rate * paid_forwards(cost, 0, True) * forward_s(cost, context) / rows
    answer = (guard[ANSWER_TOKENS] + _BELIEVED_ANSWERS * _ANSWER) / (
        guard[ANSWERS] + _BELIEVED_ANSWERS
    )
    steps = answer / max(rate * verify_s(cost, rows, context) / rows, 1.0)
    read = rate * cost[DRAFT_PROMPT] / steps
    usual = read * guard[PROMPT_TOKENS] / guard[PROMPTS]
    if brought >= (kept + usual) * (1.0 - _INERTIA * guard[LEANING]):
        guard[PATIENCE], guard[LEANING] = _LEAST_PATIENCE, 1.0
        return brought >= read * prompt_tokens
    guard[LEANING] = -1.0
    patience = max(guard[PATIENCE], _LEAST_PATIENCE)
    if guard[HOLDING] > 0 or guard[RESTED] < patience * max(guard[HELD], steps):
        return False
    guard[PATIENCE] = min(2.0 * patience, _MOST_PATIENCE)
    guard[HOLDING], guard[PROBING], guard[HELD] = 1.0, 1.0, 0.0
    return True


@compiled
def keeps(desk: Desk, knobs: Array, cost: Array, rows: int, holders: int, context: int) -> bool:
    """Whether those that hold the drafter go on, though it may not pay for those that enter.

    They may have entered under another load, and a few pay its keep-alive for a whole batch. One
    that holds it to notice a change keeps it to its end.
    """
    guard = desk.guard
    if guard[LEANING] >= 0 or guard[PROBING] > 0:
        return True
    kept = rate_of(desk, knobs, cost, rows, context) * forward_s(cost, context)
    return holders * _brought(guard, cost, rows, context) >= kept * paid_forwards(cost, 0, True)


@compiled
def _count(desk: Desk, slot: int, prompt_tokens: int) -> None:
    """Take in the prompt that comes, and how long the answer was that its slot held before."""
    guard = desk.guard
    guard[PROMPT_TOKENS] = guard[PROMPT_TOKENS] * _REQUEST_MEMORY + prompt_tokens
    guard[PROMPTS] = guard[PROMPTS] * _REQUEST_MEMORY + 1.0
    if desk.known[slot] > 0:
        guard[ANSWER_TOKENS] = guard[ANSWER_TOKENS] * _REQUEST_MEMORY + desk.known[slot]
        guard[ANSWERS] = guard[ANSWERS] * _REQUEST_MEMORY + 1.0
        desk.known[slot] = 0
