"""A step's decision, in the order of docs/how-it-decides.md; compiled.

Objective: emitted tokens per second of the whole batch. Replays and servers call the same functions
on the same state:

    decide_forwards how many forwards the drafter runs; requests hold it where it runs at all
    decide          the rate, and at what price rows choose
    draft_rows      per row a source and a length (see `choice`)
    verify          the likeliest of all rows' tokens, as many as the budget holds
    learn           what was emitted, and how long the step took
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, forward_s, plain_step_s
from adaspec.jit import compiled
from adaspec.policy.budget import (
    GAINS,
    LAST,
    NEURAL,
    NGRAM,
    ONE_MORE,
    PRICE,
    RATE_STEPS,
    SETTINGS,
    SPLICE,
    BatchState,
    Record,
    best_budget,
    count_pause,
    forwards_to_run,
    keep_likeliest,
    most_forwards,
    most_in_time,
    note_offered,
    ranked,
    weigh_forwards,
)

Array = NDArray[np.float64]
Longs = NDArray[np.int64]

OF_DRAFTS = -1
"""A budget that is still to be made, of the drafts themselves."""
_PRIOR_SPEEDUP = 2.0
_PRIOR_STEPS = 10.0
"""The throughput begins as so many steps at so much more than no speculation would emit."""
_FADE = 0.999
"""What is kept of a source's record at each of its drafts: records age by evidence."""
_IDLE_FADE = 0.999
"""The same in a step in which the source drafts nothing, so that one day it is tried again."""
_PRIOR_DRAFTS = 5.0
"""Imagined drafts that were accepted as expected. Drafts and not tokens: a long draft that fails at
its first token says as little of the next as a short one, and a source given up would stay so."""
_MAX_FACTOR = 1.15
_FADED = 1e-6


@compiled
def decide_forwards(
    state: BatchState, costs: Costs, running: int, context: int, neural_cap: int
) -> int:
    """How many forwards the drafter runs in a step of so many rows and known tokens.

    Within the operator's bound, a step has to hold a drafted token of each row beside them.
    """
    forwards = forwards_to_run(state.forwards_by_load, state.number, running, neural_cap)
    while forwards > 0 and most_in_time(costs, running, 0, context, forwards, running) < running:
        forwards -= 1
    return forwards


@compiled
def decide(state: BatchState, costs: Costs, running: int, context: int) -> Array:
    """Say at what rate tokens are traded against time, and what rows choose by: `choice.SETTINGS`.

    So many rows run, of which so many tokens are known.
    """
    state.step[0].rate = rate_of(state, costs, running, context)
    settings = np.ones(SETTINGS)
    settings[PRICE] = state.step[0].price
    for source in (NGRAM, NEURAL, SPLICE):
        settings[source] = factor_of(state, source)
    return settings


@compiled
def rate_of(state: BatchState, costs: Costs, rows: int, context: int) -> float:
    """Tokens per second of the last steps; at first a guess from what no speculation would do."""
    throughput = state.throughput[0]
    plain = rows / plain_step_s(costs, rows, context)
    if throughput.steps == 0:
        return _PRIOR_SPEEDUP * plain
    prior_s = _PRIOR_STEPS * rows / plain
    tokens = throughput.tokens + _PRIOR_SPEEDUP * plain * prior_s
    return tokens / (throughput.seconds + prior_s)


@compiled
def factor_of(state: BatchState, source: int) -> float:
    """Accepted over expected tokens of a source, shrunk to 1."""
    record = state.record[source - 1]
    # After hours without a draft the record has faded to less than a float can divide by.
    if record.expected <= 0 or record.drafts < _FADED:
        return 1.0
    prior = _PRIOR_DRAFTS * record.expected / record.drafts
    return min(_MAX_FACTOR, (record.accepted + prior) / (record.expected + prior))


@compiled
def verify(
    state: BatchState,
    costs: Costs,
    survival: Array,
    lengths: Longs,
    budget: int,
    prompt_tokens: int = 0,
    context: int = 0,
    forwards: int = 0,
) -> int:
    """Cut drafts to the likeliest tokens, as many as the budget holds; how many that is.

    The step that verifies them reads so much of prompts, knows so many tokens, and runs the drafter
    so often. `lengths` are those of drafts, and then of what is verified. `survival` stays as rows
    said it: `learn_factors` compares it with what is accepted, and rows compare it with the price.
    """
    offered, running = ranked(survival, lengths), lengths.shape[0]
    note_offered(state, offered, running)
    if budget == OF_DRAFTS:
        beside = prompt_tokens, context, forwards
        most = most_in_time(costs, running, *beside, offered.shape[0])
        tokens = running + prompt_tokens
        budget = best_budget(costs, state.step[0].rate, tokens, offered, 1.0, most)
    state.step[0].price = keep_likeliest(offered, survival, lengths, budget)
    return budget


@compiled
def learn(
    state: BatchState,
    costs: Costs,
    rows: Record,
    survival: Array,
    settings: Array,
    forwards: int,
    neural_cap: int,
    seconds: float,
) -> None:
    """Update the rate, the sources' records, and how many forwards run, by a verified step.

    A row that emitted nothing has left the batch: neither time nor tokens were its.
    """
    emitted = 0
    for at in range(rows.shape[0]):
        emitted += rows[at].emitted
    if emitted == 0:
        return
    learn_factors(state, rows, survival, settings)
    learn_forwards(state, costs, rows, forwards, neural_cap)
    throughput = state.throughput[0]
    oldest = state.recent_steps[int(throughput.steps) % RATE_STEPS]
    throughput.tokens += emitted - oldest[0]
    throughput.seconds += seconds - oldest[1]
    oldest[0], oldest[1] = emitted, seconds
    throughput.steps += 1.0


@compiled
def learn_factors(state: BatchState, rows: Record, survival: Array, settings: Array) -> None:
    """Add a step's drafts to the records of their sources."""
    step = np.zeros((SETTINGS, 3))
    for at in range(rows.shape[0]):
        row = rows[at]
        first = NEURAL if row.neural > 0 else NGRAM
        count = row.neural if row.neural > 0 else row.copied
        if count > 0:
            step[first, 0] += survival[at, :count].sum()
            step[first, 1] += min(row.accepted, count)
            step[first, 2] += 1
        # Of a splice something is learned only where all neural tokens before it were accepted.
        if row.neural > 0 and row.copied > 0 and row.accepted >= row.neural:
            reached = survival[at, row.neural - 1]
            spliced = survival[at, row.neural : row.neural + row.copied].sum()
            step[SPLICE, 0] += spliced / reached if reached > 0 else 0.0
            step[SPLICE, 1] += row.accepted - row.neural
            step[SPLICE, 2] += 1
    for source in (NGRAM, NEURAL, SPLICE):
        expected, accepted, drafts = step[source]
        update_record(state, source, expected / settings[source], accepted, drafts)


@compiled
def update_record(
    state: BatchState, source: int, expected: float, accepted: float, drafts: float
) -> None:
    """Add a step's drafts of a source to its record, with what was expected before correction.

    Compared with what correction had left of it, a record would correct half of what is wrong.
    """
    record = state.record[source - 1]
    fade = _FADE**drafts if drafts > 0 else _IDLE_FADE
    record.expected = record.expected * fade + expected
    record.accepted = record.accepted * fade + accepted
    record.drafts = record.drafts * fade + drafts


@compiled
def learn_forwards(
    state: BatchState, costs: Costs, rows: Record, forwards: int, neural_cap: int
) -> None:
    """Update how many forwards pay."""
    table, number = state.forwards_by_load, state.number
    running = rows.shape[0]
    if number[0].paused > 0:
        count_pause(number, running)
        return
    emitting, held, emitted, context, gain = 0, 0, 0, 0, np.zeros(GAINS)
    for at in range(running):
        row = rows[at]
        context += row.context
        if row.emitted > 0:
            emitting += 1
            emitted += row.emitted
            if row.holds_neural:
                held += 1
                gain += row.gain
    # A step that was prepared before the number changed says nothing of the new one.
    stale = forwards != decide_forwards(state, costs, running, context, neural_cap)
    if forwards == 0 or held == 0 or stale:
        return
    rate = rate_of(state, costs, running, context)
    one_forward = rate * forward_s(costs, running, context) / emitting
    net = gain / emitting - one_forward
    most = most_forwards(table, neural_cap)
    weigh_forwards(
        number, forwards, most, net[LAST], net[ONE_MORE], emitted / emitting, emitting, held
    )
