"""Who holds the neural drafter: while it does not pay for itself, requests enter without it.

What the drafter brings falls with the load, so the present load says what to expect of it, and
experience says by how much to correct that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, forward_s, paid_forwards, plain_step_s, token_s
from adaspec.jit import compiled, inlined
from adaspec.policy.planner.memory import Memory
from adaspec.policy.planner.rate import rate_of

Array = NDArray[np.float64]

_UNLOADED, _FALL = 0.75, 4.2
"""Tokens that a row gains per step by the drafter where verifying is free, and how that falls with
a token's price at no speculation. An EAGLE-3 head's under the costs of a GPU and of a CPU; where
another drafter's differ, experience corrects them."""
_PRIOR_TOKENS, _PRIOR_STEPS = 100.0, 16.0
"""Expected tokens that weigh as much as experience, and steps in which every row brings them: the
more of both. Where many requests begin at once, their first steps are like no later ones, and those
that lose the drafter then are without it to their end."""
_ROW_FADE = 0.9999
"""Per step of a row: what one brings varies far more than what is at stake."""
_INERTIA = 0.25
"""By this share the drafter must fall short to be given up, and pay more to be taken up again: a
batch of which some hold it pays its keep-alive for little."""
_PRIOR_ANSWER, _PRIOR_ANSWERS = 128.0, 8.0
"""Tokens of an answer before any was seen, and how many answers that assumption weighs."""
_REQUEST_FADE = 0.98
_MAX_STEPS_HELD = 200.0
_MIN_PATIENCE, _MAX_PATIENCE = 8.0, 64.0
_LOG2_OF_LOADS = 2.0
"""One load has four times the rows of the next lower one. What the drafter costs and brings at one
at which it was not tried is not known."""


@inlined
def _usual_gain(costs: Costs, rows: int, context: int) -> float:
    """Tokens per row and step that the drafter usually brings at this load, nothing paid."""
    price = token_s(costs) * rows / plain_step_s(costs, rows, context)
    return _UNLOADED * np.exp(-_FALL * price)


@inlined
def _expected_gain(drafter: Any, costs: Costs, rows: int, context: int) -> float:
    """Tokens per row and step that the drafter is expected to bring, nothing paid."""
    usual = _usual_gain(costs, rows, context)
    prior = max(_PRIOR_TOKENS, _PRIOR_STEPS * rows * usual)
    return (drafter.brought + prior) / (drafter.expected + prior) * usual


@compiled
def update_drafter(
    memory: Memory,
    costs: Costs,
    rate: float,
    rows: int,
    holders: int,
    context: int,
    forwards: int,
    gain: float,
) -> None:
    """Take in what the drafter brought the rows that hold it: `gain` in tokens, no forward paid.

    Forwards beyond the keep-alive are shared by all rows, as if every one held it: one holder pays
    for a whole batch's, so its gain alone would never bring the drafter back.
    """
    drafter = memory.drafter[0]
    drafter.held_now = 1.0 if holders > 0 else 0.0
    drafter.context_per_row = context / rows
    if holders == 0:
        drafter.steps_without += 1.0
        drafter.probing = 0.0
        return
    more = paid_forwards(forwards, True) - paid_forwards(0, True)
    fade = _ROW_FADE**holders
    net = gain - rate * more * forward_s(costs, rows, context) * holders / rows
    drafter.brought = drafter.brought * fade + net
    drafter.expected = drafter.expected * fade + holders * _usual_gain(costs, rows, context)
    drafter.steps_held = min(drafter.steps_held + 1.0, _MAX_STEPS_HELD)
    drafter.steps_without = 0.0


@compiled
def admits(
    memory: Memory, knobs: Array, costs: Costs, slot: int, prompt_tokens: int, rows: int
) -> bool:
    """Whether the request that enters this slot, one of so many rows, shall hold the drafter.

    It shall where what the drafter brings such requests pays for their share of its keep-alive and
    for its reading of their prompts, and this one for its own. Where it does not, one request at a
    time still gets it, to notice when that changes: after a rest that is a multiple of the steps
    for which it was last held, and of those that an answer takes, doubled at every failure. The
    first rest at each other load is as long as it was held.
    """
    drafter = memory.drafter[0]
    _count_request(memory, slot, prompt_tokens)
    usual_context = drafter.context_per_row
    context = int(rows * (usual_context if usual_context > 0 else prompt_tokens))
    rate = rate_of(memory, knobs, costs, rows, context)
    gain = _expected_gain(drafter, costs, rows, context)
    keep_alive = rate * paid_forwards(0, True) * forward_s(costs, rows, context) / rows
    answer = (drafter.answer_tokens + _PRIOR_ANSWERS * _PRIOR_ANSWER) / (
        drafter.answers + _PRIOR_ANSWERS
    )
    steps = answer / max(rate * plain_step_s(costs, rows, context) / rows, 1.0)
    per_prompt_token = rate * costs.draft_prompt_s / steps
    usual_prompt = per_prompt_token * drafter.prompt_tokens / drafter.prompts
    if gain >= (keep_alive + usual_prompt) * (1.0 - _INERTIA * drafter.leaning):
        drafter.patience, drafter.leaning, drafter.tried_loads = _MIN_PATIENCE, 1.0, 0.0
        return gain >= per_prompt_token * prompt_tokens
    drafter.leaning = -1.0
    patience = max(drafter.patience, _MIN_PATIENCE)
    load = 1 << int(np.log2(rows) / _LOG2_OF_LOADS)
    tried = int(drafter.tried_loads)
    if tried == 0:
        drafter.tried_loads = tried = load
    rests = patience if tried & load else 1.0
    if drafter.held_now > 0 or drafter.steps_without < rests * max(drafter.steps_held, steps):
        return False
    drafter.tried_loads = tried | load
    drafter.patience = min(2.0 * patience, _MAX_PATIENCE)
    drafter.held_now, drafter.probing, drafter.steps_held = 1.0, 1.0, 0.0
    return True


@compiled
def keeps(
    memory: Memory, knobs: Array, costs: Costs, rows: int, holders: int, context: int
) -> bool:
    """Whether those that hold the drafter go on, though it may not pay for those that enter.

    They may have entered under another load, and a few pay its keep-alive for a whole batch. A
    probe keeps the drafter to its end.
    """
    drafter = memory.drafter[0]
    if drafter.leaning >= 0 or drafter.probing > 0:
        return True
    forward = rate_of(memory, knobs, costs, rows, context) * forward_s(costs, rows, context)
    gain = holders * _expected_gain(drafter, costs, rows, context)
    return gain >= forward * paid_forwards(0, True)


@compiled
def _count_request(memory: Memory, slot: int, prompt_tokens: int) -> None:
    """Take in the prompt that enters a slot, and how long the answer was that it held before."""
    drafter = memory.drafter[0]
    drafter.prompt_tokens = drafter.prompt_tokens * _REQUEST_FADE + prompt_tokens
    drafter.prompts = drafter.prompts * _REQUEST_FADE + 1.0
    if memory.output_tokens[slot] > 0:
        answer_tokens = memory.output_tokens[slot]
        drafter.answer_tokens = drafter.answer_tokens * _REQUEST_FADE + answer_tokens
        drafter.answers = drafter.answers * _REQUEST_FADE + 1.0
        memory.output_tokens[slot] = 0
