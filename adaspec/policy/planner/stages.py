"""The stages of a decision, in the order in which a step takes them; compiled.

Objective: emitted tokens per second of the whole batch. Rows are decided by the same stages in
servers and replays; what is decided for the whole batch (`plan`, `choose`, `splice`), a server's
`vllm.session.host.Host` does by the same parts. All of them work on the planner behind an address,
whose `run` and `rows` say what runs:

    holds_drafter   do requests hold the neural drafter at this load?
    plan        before drafting: predict, and say how many forwards the drafter runs
    revise      after each forward, where drafts are read: revise what is expected
    choose      what is verified, per row
    splice      copied tokens behind neural ones, where only now the match there is known
    learn       what was emitted, and how long the step took

An engine on which the whole batch is decided for elsewhere, and later, takes the part of `plan`,
`choose` and `splice` that is about single rows: `expect`, `wanted`, `extended`, `expect_splices`
and `offer`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import forward_s
from adaspec.jit import compiled
from adaspec.policy.planner.address import planner_at
from adaspec.policy.planner.budget import (
    decide_budget,
    keep_likeliest,
    note_ranked,
    rank,
    ranked_budget,
)
from adaspec.policy.planner.choose import extended, offer, spliced_tokens, wanted
from adaspec.policy.planner.curves import (
    predict_before_drafting,
    predict_splices,
    revise_by_draft,
)
from adaspec.policy.planner.forwards import (
    FEWER,
    GAINS,
    MORE,
    RAN,
    count_pause,
    forwards_at,
    forwards_to_run,
    most_forwards,
    note_gain,
    weigh_forwards,
)
from adaspec.policy.planner.learning import (
    context_of,
    count_step,
    fill_factors,
    note_expected,
    rate_of,
    update_record,
)
from adaspec.policy.planner.state import NEURAL, NGRAM, Planner, rows_of
from adaspec.predict.features import SpliceMatches

__all__ = ["extended", "offer", "wanted"]  # stages, too

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@compiled
def holds_drafter(address: int, running: int) -> bool:
    """Whether requests hold the drafter where so many run: a step without it leaves a hole."""
    planner = planner_at(address)
    batch_state = planner.batch_state
    if planner.run[0].neural_cap == 0 or batch_state.pause[0].left > 0:
        return False
    return forwards_at(batch_state.forwards_by_load, running) > 0


@compiled
def plan(address: int) -> int:
    """Predict the curves of the rows that were taken in; how many forwards the drafter runs."""
    planner = planner_at(address)
    rows, run, batch_state = rows_of(planner), planner.run[0], planner.batch_state
    running = rows.slots.shape[0]
    if run.is_async:
        rate = rate_of(planner.state, planner.costs, running, context_of(rows))
        batch_state.step[0].budget = decide_budget(
            batch_state, planner.costs, rate, running, run.prompt_tokens, run.cap
        )
    fill_factors(planner.state)
    expect(address)
    if not rows.holds_neural.any():
        return 0
    table, number = batch_state.forwards_by_load, batch_state.number
    return forwards_to_run(table, number, running, run.neural_cap)


@compiled
def expect(address: int) -> None:
    """Predict the curves of the rows that were taken in."""
    predict_before_drafting(planner_at(address))


@compiled
def revise(
    address: int, depth: int, tokens: Ints, confidences: Floats, matches: SpliceMatches
) -> None:
    """Revise what is expected of every row by its token at this depth, and the match behind it."""
    revise_by_draft(planner_at(address), tokens, confidences, depth, matches)


@compiled
def choose(address: int, forwards: int, neural_len: Ints, ngram_len: Ints) -> bool:
    """Choose lengths after so many forwards; whether `splice` is still to be called.

    Where drafts are not read, the match behind neural tokens may be looked at only once it is
    settled how many of them are verified.
    """
    planner = planner_at(address)
    wanted(address, forwards, neural_len, ngram_len)
    extended(address, forwards, neural_len, ngram_len)
    offer(address, neural_len, ngram_len)
    _verify_likeliest(planner, neural_len, ngram_len)
    if not planner.run[0].reads_drafts and neural_len.any():
        return True
    note_ranked(planner.batch_state, neural_len.shape[0])
    note_expected(planner.state, neural_len, ngram_len)
    return False


@compiled
def _verify_likeliest(planner: Planner, neural_len: Ints, ngram_len: Ints) -> None:
    """Keep the likeliest of the offered tokens, as many as the budget holds."""
    batch_state, lengths = planner.batch_state, neural_len + ngram_len
    rows, running = rows_of(planner), neural_len.shape[0]
    rank(batch_state, planner.state.offered, lengths)
    budget = batch_state.step[0].budget
    if not planner.run[0].is_async:
        costs, tokens = planner.costs, running + planner.run[0].prompt_tokens
        rate = rate_of(planner.state, costs, running, context_of(rows))
        budget = ranked_budget(batch_state, costs, rate, tokens)
    keep_likeliest(batch_state, planner.state.offered, lengths, budget)
    for row in range(running):
        neural_len[row] = min(neural_len[row], lengths[row])
        ngram_len[row] = lengths[row] - neural_len[row]


@compiled
def splice(address: int, neural_len: Ints, matches: SpliceMatches, ngram_len: Ints) -> None:
    """Choose how many copied tokens follow the neural ones, by the matches behind those."""
    planner = planner_at(address)
    state, running = planner.state, neural_len.shape[0]
    expect_splices(address, neural_len, matches)
    for row in range(running):
        if neural_len[row] > 0:
            ngram_len[row] = spliced_tokens(state, row, neural_len[row], planner.run[0].cap)
    offer(address, neural_len, ngram_len)
    for row in range(running):
        state.offered[row, : neural_len[row]] = 1.0  # they are settled
    _verify_likeliest(planner, neural_len, ngram_len)
    note_ranked(planner.batch_state, running)
    note_expected(state, neural_len, ngram_len)


@compiled
def expect_splices(address: int, neural_len: Ints, matches: SpliceMatches) -> None:
    """Predict the curves of splices behind so many neural tokens whose own are not known."""
    predict_splices(planner_at(address), neural_len, np.empty((0, 0), np.int32), matches)


@compiled
def learn(
    address: int,
    emitted_tokens: Ints,
    drafted: Ints,
    neural_drafted: Ints,
    accepted: Ints,
    forwards: int,
    seconds: float,
) -> None:
    """Update the throughput, the drafters' records, and whether the neural one pays, by a step.

    A row that emitted nothing has left the batch: neither time nor tokens were its.
    """
    planner = planner_at(address)
    state = planner.state
    if emitted_tokens.sum() == 0:
        return
    expected, taken, drafts = np.zeros(2), np.zeros(2), np.zeros(2, np.int64)
    for row in range(planner.run[0].rows):
        if drafted[row] > 0:
            source = NEURAL if neural_drafted[row] > 0 else NGRAM
            drafts[source] += 1
            expected[source] += state.expected[row, source]
            # What is spliced on corrects nothing.
            taken[source] += min(accepted[row], neural_drafted[row] or drafted[row])
    for source in (NGRAM, NEURAL):
        update_record(state, source, expected[source], taken[source], drafts[source])
    _learn_drafter(planner, emitted_tokens, forwards)
    count_step(state, emitted_tokens.sum(), seconds)


@compiled
def _learn_drafter(planner: Planner, emitted_tokens: Ints, forwards: int) -> None:
    """Update whether the drafter pays, and how many forwards do."""
    rows, costs, batch_state = rows_of(planner), planner.costs, planner.batch_state
    running, context, pause = rows.slots.shape[0], context_of(rows), batch_state.pause
    if pause[0].left > 0:
        count_pause(pause, running)
        return
    emitting, held, gain = 0, 0, np.zeros(GAINS)
    for row in range(running):
        if emitted_tokens[row] > 0:
            emitting += 1
            if rows.holds_neural[row]:
                held += 1
                gain += planner.state.neural_gain[row]
    if forwards == 0 or held == 0:
        return
    rate = rate_of(planner.state, costs, running, context)
    one_forward = rate * forward_s(costs, running, context) / emitting
    gain, emitted = gain / emitting, emitted_tokens.sum() / emitting
    table, number = batch_state.forwards_by_load, batch_state.number
    neural_cap = planner.run[0].neural_cap
    # A step that was prepared before the number changed says nothing of the new one.
    if forwards == forwards_to_run(table, number, running, neural_cap):
        most, last = most_forwards(table, neural_cap), gain[RAN] - gain[FEWER] - one_forward
        one_more = gain[MORE] - gain[RAN] - one_forward
        weigh_forwards(number, forwards, most, last, one_more, emitted, emitting)
    note_gain(pause, gain[RAN], forwards * one_forward, emitted, emitting, held)
