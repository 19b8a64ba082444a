"""The stages of a decision, in the order in which a step takes them; compiled.

Objective: emitted tokens per second of the whole batch. The policy's class calls one stage at a
time, on what an engine or a replay shows it; the replay's compiled loop calls the very same
stages. All of them work on the planner behind an address:

    holds_drafter   do requests hold the neural drafter at this load?
    plan        before drafting: predict, and say how many forwards the drafter runs
    revise      after each forward, where drafts are read: revise what is expected
    budget      in an async engine: how many tokens may be verified, decided before
    choose      what is verified, per row
    splice      copied tokens behind neural ones, where only now the match there is known
    learn       what was accepted, and how long the step took

An engine on which the whole batch is decided for elsewhere, and later, takes the part of `plan`,
`choose` and `splice` that is about single rows: `expect`, `wanted`, `extended`, `wanted_splice` and
`offer`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.match import AGREE, AVAILABLE, LENGTH, SEEN
from adaspec.jit import compiled, inlined
from adaspec.policy.planner.address import model_at, planner_at
from adaspec.policy.planner.budget import (
    decide_budget,
    fit,
    forwards_at,
    note_ranked,
    rank,
    ranked_budget,
)
from adaspec.policy.planner.choose import choose_sources, extend, fill_offered, spliced_tokens
from adaspec.policy.planner.curves import (
    predict_before_drafting,
    predict_splices,
    revise_by_draft,
)
from adaspec.policy.planner.memory import NEURAL, NGRAM, SPLICE, Memory
from adaspec.policy.planner.rate import context_of, count_step, rate_of
from adaspec.policy.planner.recalibration import fill_factors, note_expected, update_record
from adaspec.policy.planner.recorder import record_decisions, record_evidence, record_splices
from adaspec.policy.planner.state import Planner
from adaspec.predict.features import BehindMatches, RowFacts

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


@compiled
def rows_of(planner: Planner) -> RowFacts:
    """This step's rows."""
    count, rows = planner.limits[0].rows, planner.rows
    return RowFacts(
        rows.slots[:count],
        rows.prompt_tokens[:count],
        rows.position[:count],
        rows.holds_neural[:count],
        rows.length[:count],
        rows.start[:count],
        rows.agree[:count],
        rows.seen[:count],
        rows.available[:count],
        rows.tail[:count],
        rows.candidate[:count],
    )


@compiled
def _rows_of_model(planner: Planner, model: int) -> Ints:
    """The rows that a model predicts for."""
    count = planner.limits[0].rows
    if planner.models.shape[0] == 1:
        return np.arange(count).astype(np.int32)
    chosen = np.empty(count, np.int32)
    filled = 0
    for row in range(count):
        if planner.model_of_row[row] == model:
            chosen[filled] = row
            filled += 1
    return chosen[:filled]


@compiled
def price_of(planner: Planner) -> float:
    """What a token has to be worth to be verified in this step: see `budget`."""
    return 0.0 if planner.limits[0].weighs_every_splice else planner.budget.step[0].price


@compiled
def holds_drafter(address: int, load: int) -> bool:
    """Whether requests hold the drafter where so many run: a step without it leaves a hole."""
    planner = planner_at(address)
    return planner.limits[0].neural_cap > 0 and forwards_at(planner.budget, load) > 0


@compiled
def plan_columns(
    address: int,
    slots: Ints,
    prompt_tokens: Ints,
    position: Ints,
    holds_neural: Bools,
    length: Ints,
    start: Ints,
    agree: Ints,
    seen: Ints,
    available: Ints,
    tail: Ints,
    candidate: Ints,
    reading: int,
) -> int:
    """The same as `plan`, of a batch given column by column.

    `reading`: tokens of prompts that the step reads besides.
    """
    planner = planner_at(address)
    planner.limits[0].rows, planner.limits[0].prompt_tokens = slots.shape[0], reading
    rows = rows_of(planner)
    rows.slots[:] = slots
    rows.prompt_tokens[:] = prompt_tokens
    rows.position[:] = position
    rows.holds_neural[:] = holds_neural
    rows.length[:] = length
    rows.start[:] = start
    rows.agree[:] = agree
    rows.seen[:] = seen
    rows.available[:] = available
    rows.tail[:] = tail
    rows.candidate[:] = candidate
    return plan(address)


@compiled
def plan(address: int) -> int:
    """Predict the curves of the rows that were taken in; how many forwards the drafter runs."""
    planner = planner_at(address)
    rows, limits, step = rows_of(planner), planner.limits[0], planner.budget.step[0]
    running = rows.slots.shape[0]
    if limits.is_late:
        rate = rate_of(planner.memory, planner.costs, running, context_of(rows))
        step.budget = decide_budget(
            planner.budget, planner.costs, rate, running, limits.prompt_tokens, limits.cap
        )
    for m in range(planner.models.shape[0]):
        fill_factors(planner.memory)
        _predict(planner, m)
    if planner.recorder.place.shape[0] > 0:
        record_decisions(planner.recorder, planner.memory, rows)
    step.forwards = 0
    if rows.holds_neural.any():
        step.forwards = min(forwards_at(planner.budget, running), limits.neural_cap)
    return int(step.forwards)


@compiled
def _predict(planner: Planner, model: int) -> None:
    """Predict the curves of a model's rows."""
    predict_before_drafting(
        model_at(planner.models[model]),
        planner.memory,
        rows_of(planner),
        _rows_of_model(planner, model),
        price_of(planner),
    )


@compiled
def expect(address: int) -> None:
    """Predict the curves of the rows that were taken in, by a price and factors set by others."""
    planner = planner_at(address)
    for m in range(planner.models.shape[0]):
        _predict(planner, m)


@compiled
def budget(address: int) -> int:
    """How many drafted tokens this step can verify, all rows together."""
    return int(planner_at(address).budget.step[0].budget)


@compiled
def observe_draft(
    address: int, tokens: Ints, confidences: Floats, facts: Ints, copied: Ints
) -> None:
    """Revise what is expected by all tokens of a draft, with the facts of the matches behind each.

    See `BehindDrafts.every`.
    """
    for k in range(tokens.shape[1]):
        found = facts[k]
        behind = BehindMatches(
            found[LENGTH], found[AGREE], found[SEEN], found[AVAILABLE], copied[k]
        )
        revise(address, k + 1, tokens, confidences, behind)


@compiled
def revise(
    address: int, depth: int, tokens: Ints, confidences: Floats, behind: BehindMatches
) -> None:
    """Revise what is expected of every row by its token at this depth, and the match behind it."""
    planner = planner_at(address)
    rows, memory = rows_of(planner), planner.memory
    price = price_of(planner)
    for m in range(planner.models.shape[0]):
        revise_by_draft(
            model_at(planner.models[m]),
            memory,
            rows,
            _rows_of_model(planner, m),
            tokens,
            confidences,
            depth,
            behind,
            price,
            planner.limits[0].cap,
        )
    if planner.recorder.place.shape[0] > 0:
        depths = np.full(rows.slots.shape[0], depth, np.int32)
        record_evidence(planner.recorder, memory, rows, depth)
        record_splices(planner.recorder, memory, rows, depths, behind, price)


@compiled
def predicts_numbers(address: int) -> bool:
    """Whether all predictions are numbers: by others, nothing would be chosen ever again."""
    planner = planner_at(address)
    rows, memory = planner.limits[0].rows, planner.memory
    total = memory.predictions[:rows].sum() + memory.evidence_predictions[:rows].sum()
    return not np.isnan(total)


@compiled
def choose(address: int, count: int, neural_len: Ints, ngram_len: Ints) -> bool:
    """Choose lengths after `count` forwards; whether `splice` is still to be called.

    Where drafts are not read, the match behind neural tokens may be looked at only once it is
    settled how many of them are verified.
    """
    planner = planner_at(address)
    wanted(address, count, neural_len, ngram_len)
    extended(address, count, neural_len, ngram_len)
    offer(address, neural_len, ngram_len)
    _fit(planner, neural_len, ngram_len)
    if not planner.limits[0].reads_drafts and neural_len.any():
        return True
    note_ranked(planner.budget, neural_len.shape[0])
    _note_expected(planner.memory, neural_len, ngram_len)
    return False


@compiled
def wanted(address: int, count: int, neural_len: Ints, ngram_len: Ints) -> None:
    """Fill in what is worth verifying at the step's price, after `count` forwards."""
    planner = planner_at(address)
    limits, price = planner.limits[0], price_of(planner)
    choose_sources(
        planner.memory,
        rows_of(planner),
        count,
        price,
        limits.cap,
        limits.reads_drafts > 0,
        neural_len,
        ngram_len,
    )


@compiled
def extended(address: int, count: int, neural_len: Ints, ngram_len: Ints) -> None:
    """Let every wanted draft go as far as its source does, after `count` forwards."""
    planner = planner_at(address)
    limits, rows = planner.limits[0], rows_of(planner)
    reads_drafts = limits.reads_drafts > 0
    extend(planner.memory, rows, count, limits.cap, reads_drafts, neural_len, ngram_len)


@compiled
def offer(address: int, neural_len: Ints, ngram_len: Ints) -> None:
    """Fill in the survival of the tokens of drafts of these lengths."""
    fill_offered(planner_at(address).memory, neural_len, ngram_len)


@compiled
def _fit(planner: Planner, neural_len: Ints, ngram_len: Ints) -> None:
    """Keep the likeliest of the offered tokens, as many as the budget holds."""
    budget, lengths = planner.budget, neural_len + ngram_len
    rows, running = rows_of(planner), neural_len.shape[0]
    rank(budget, planner.memory.offered, lengths)
    room = budget.step[0].budget
    if not planner.limits[0].is_late:
        costs, tokens = planner.costs, running + planner.limits[0].prompt_tokens
        rate = rate_of(planner.memory, costs, running, context_of(rows))
        room = ranked_budget(budget, costs, rate, tokens)
    fit(budget, planner.memory.offered, lengths, room)
    for row in range(running):
        neural_len[row] = min(neural_len[row], lengths[row])
        ngram_len[row] = lengths[row] - neural_len[row]


@compiled
def _note_expected(memory: Memory, neural_len: Ints, ngram_len: Ints) -> None:
    """Note what is expected of the chosen lengths, spliced tokens included."""
    for row in range(neural_len.shape[0]):
        neural, copied = neural_len[row], ngram_len[row]
        if neural > 0:
            memory.splice_len[row, neural] = copied
            memory.splice_tokens[row, neural] = memory.splice[row, neural, 1 : copied + 1].sum()
    note_expected(memory, neural_len, ngram_len)


@compiled
def expected_tokens(address: int) -> Floats:
    """Tokens expected to be accepted per row of what was chosen, spliced ones left out."""
    planner = planner_at(address)
    expected = np.empty(planner.limits[0].rows, np.float32)
    for row in range(expected.shape[0]):
        predicted = planner.memory.expected[row]
        expected[row] = predicted[NGRAM] + predicted[NEURAL]
    return expected


@compiled
def shorten(
    address: int, chosen_neural: Ints, chosen_ngram: Ints, neural_len: Ints, ngram_len: Ints
) -> None:
    """Scale what is expected of what was chosen to drafts that somebody else has cut since."""
    memory = planner_at(address).memory
    for row in range(neural_len.shape[0]):
        neural, ngram = chosen_neural[row], chosen_ngram[row]
        expected = memory.expected[row]
        if neural > 0:
            expected[NEURAL] *= _share(memory.neural[row], neural_len[row], neural)
            left = ngram_len[row] if neural_len[row] == neural else 0
            expected[SPLICE] *= _share(memory.splice[row, neural], left, ngram)
        else:
            expected[NGRAM] *= _share(memory.ngram[row], ngram_len[row], ngram)


@inlined
def _share(survival: Array, left: int, chosen: int) -> float:
    """Of the accepted tokens that a draft promises, those within the length that is left of it."""
    if left >= chosen:
        return 1.0
    whole = survival[1 : chosen + 1].sum()
    return survival[1 : left + 1].sum() / whole if whole > 0 else 0.0


@compiled
def splice_columns(
    address: int,
    neural_len: Ints,
    length: Ints,
    agree: Ints,
    seen: Ints,
    available: Ints,
    ngram_len: Ints,
) -> None:
    """The same as `splice`, the matches given column by column."""
    unknown = np.full(length.shape[0], -1, np.int32)
    splice(address, neural_len, BehindMatches(length, agree, seen, available, unknown), ngram_len)


@compiled
def splice(address: int, neural_len: Ints, behind: BehindMatches, ngram_len: Ints) -> None:
    """Choose how many copied tokens follow the neural ones, by the matches behind those."""
    planner = planner_at(address)
    rows, memory = rows_of(planner), planner.memory
    wanted_splice(address, neural_len, behind, ngram_len)
    if planner.recorder.place.shape[0] > 0:
        record_splices(planner.recorder, memory, rows, neural_len, behind, price_of(planner))
    if planner.limits[0].weighs_every_splice:
        _note_expected(memory, neural_len, ngram_len)
        return
    for row in range(rows.slots.shape[0]):
        if neural_len[row] > 0:
            ngram_len[row] = spliced_tokens(memory, row, neural_len[row], planner.limits[0].cap)
    fill_offered(memory, neural_len, ngram_len)
    for row in range(rows.slots.shape[0]):
        memory.offered[row, : neural_len[row]] = 1.0  # they are settled
    _fit(planner, neural_len, ngram_len)
    note_ranked(planner.budget, rows.slots.shape[0])
    _note_expected(memory, neural_len, ngram_len)


@compiled
def wanted_splice(address: int, neural_len: Ints, behind: BehindMatches, ngram_len: Ints) -> None:
    """Fill in how many copied tokens behind the neural ones are worth verifying."""
    planner = planner_at(address)
    memory, unread = planner.memory, np.empty((0, 0), np.int32)
    for m in range(planner.models.shape[0]):
        predict_splices(
            model_at(planner.models[m]),
            memory,
            rows_of(planner),
            _rows_of_model(planner, m),
            neural_len,
            unread,
            behind,
            price_of(planner),
            planner.limits[0].cap,
        )
    for row in range(neural_len.shape[0]):
        if neural_len[row] > 0:
            ngram_len[row] = memory.splice_len[row, neural_len[row]]


@compiled
def learn(
    address: int,
    emitted_tokens: Ints,
    drafted: Ints,
    neural_drafted: Ints,
    accepted: Ints,
    seconds: float,
) -> None:
    """Update the throughput and the sources' records by a step.

    A row that emitted nothing has left the batch: neither time nor tokens were its.
    """
    planner = planner_at(address)
    rows, memory = rows_of(planner), planner.memory
    if emitted_tokens.sum() == 0:
        return
    _update_records(planner, rows, drafted, neural_drafted, accepted)
    count_step(memory, emitted_tokens.sum(), seconds)


@compiled
def _update_records(
    planner: Planner, rows: RowFacts, drafted: Ints, neural_drafted: Ints, accepted: Ints
) -> None:
    """Compare what was accepted of each source's drafts with what was expected of them."""
    memory = planner.memory
    expected, taken, drafts = np.zeros(3), np.zeros(3), np.zeros(3, np.int64)
    for row in range(rows.slots.shape[0]):
        neural, predicted = neural_drafted[row], memory.expected[row]
        if neural > 0:
            drafts[NEURAL] += 1
            expected[NEURAL] += predicted[NEURAL]
            taken[NEURAL] += min(accepted[row], neural)
            if drafted[row] > neural and accepted[row] >= neural:
                drafts[SPLICE] += 1
                expected[SPLICE] += predicted[SPLICE]
                taken[SPLICE] += accepted[row] - neural
        elif drafted[row] > 0:
            drafts[NGRAM] += 1
            expected[NGRAM] += predicted[NGRAM]
            taken[NGRAM] += accepted[row]
    for source in range(3):
        update_record(memory, source, expected[source], taken[source], drafts[source])
