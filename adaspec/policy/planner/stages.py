"""The stages of a decision, in the order in which a step takes them; compiled.

Objective: emitted tokens per second of the whole batch. The policy's class calls one stage at a
time, on what an engine or a replay shows it; the replay's compiled loop calls the very same
stages. All of them work on the planner behind an address:

    admits      a request enters: does it hold the neural drafter?
    keeps       do those that hold it go on?
    plan        before drafting: predict, and say how many forwards are worth their time
    revise      after each forward, where drafts are read: revise what is expected
    proceeds    and is another forward worth its time?
    budget      in an async engine: how many tokens may be verified, decided before
    choose      what is verified, per row
    splice      copied tokens behind neural ones, where only now the match there is known
    learn       what was accepted, and how long the step took
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import token_price
from adaspec.jit import compiled, inlined
from adaspec.policy.planner import admission
from adaspec.policy.planner.address import model_at, planner_at
from adaspec.policy.planner.curves import (
    predict_before_drafting,
    predict_splices,
    revise_by_draft,
)
from adaspec.policy.planner.forwards import (
    BatchState,
    batch_state,
    best_forwards,
    wants_forward,
    weigh_ngram,
)
from adaspec.policy.planner.late import decide_budget, decide_forwards, enter_late, note_choice
from adaspec.policy.planner.lengths import choose_lengths, choose_within, use_budget
from adaspec.policy.planner.memory import NEURAL, NGRAM, SPLICE
from adaspec.policy.planner.rate import count_step, price_of, rate_of
from adaspec.policy.planner.recalibration import note_expected, update_record
from adaspec.policy.planner.recorder import record_decisions, record_evidence, record_splices
from adaspec.policy.planner.state import Planner
from adaspec.predict.features import BehindMatches, RowFacts, forget, remember

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
def state_of(planner: Planner, reads_drafts: bool) -> BatchState:
    """The batch as the plan sees it."""
    # How far a drafted token may move a prediction is the drafter's nature: any model can tell.
    return batch_state(
        planner.memory,
        rows_of(planner),
        planner.knobs[0],
        planner.costs,
        model_at(planner.models[0]).factors,
        planner.limits[0].cap,
        planner.limits[0].neural_cap,
        reads_drafts,
    )


@compiled
def _splice_price(planner: Planner, rows: RowFacts) -> float:
    """The price per token at which splices are weighed."""
    if planner.limits[0].weighs_every_splice:
        return 0.0
    return price_of(planner.memory, planner.knobs[0], planner.costs, rows)


@compiled
def enter(address: int, slot: int) -> None:
    """A request takes this slot: what its predecessor did is forgotten."""
    forget(planner_at(address).memory.history, slot)
    enter_late(planner_at(address).late, slot)


@compiled
def admits(address: int, slot: int, prompt_tokens: int, rows: int) -> bool:
    """Whether the request in this slot, one of so many rows, holds the neural drafter."""
    planner = planner_at(address)
    if planner.limits[0].neural_cap == 0:
        return False
    return admission.admits(
        planner.memory, planner.knobs[0], planner.costs, slot, prompt_tokens, rows
    )


@compiled
def keeps(address: int, rows: int, holders: int, context: int) -> bool:
    """Whether those that hold the drafter go on holding it."""
    planner = planner_at(address)
    return admission.keeps(planner.memory, planner.knobs[0], planner.costs, rows, holders, context)


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
) -> int:
    """The same as `plan`, of a batch given column by column."""
    planner = planner_at(address)
    planner.limits[0].rows = slots.shape[0]
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
    """Predict the curves of the rows that were taken in; how many forwards they are worth."""
    planner = planner_at(address)
    rows, limits = rows_of(planner), planner.limits[0]
    price = price_of(planner.memory, planner.knobs[0], planner.costs, rows)
    for m in range(planner.models.shape[0]):
        predict_before_drafting(
            model_at(planner.models[m]),
            planner.memory,
            planner.knobs[m],
            rows,
            _rows_of_model(planner, m),
            price,
        )
    if planner.recorder.at.shape[0] > 0:
        record_decisions(planner.recorder, planner.memory, rows)
    if limits.is_late:
        return _decide_late(planner, rows)
    forwards = best_forwards(state_of(planner, limits.reads_drafts > 0))
    # Evidence may make a longer draft worth while than the plan foresaw.
    return limits.neural_cap if limits.reads_drafts > 0 and forwards > 0 else forwards


@compiled
def _decide_late(planner: Planner, rows: RowFacts) -> int:
    """What the host has decided for this step: its budget, and how many forwards it runs."""
    late, running = planner.late, rows.slots.shape[0]
    most = running * planner.limits[0].cap
    late.step[0].budget = min(decide_budget(late, planner.costs, running), most)
    late.step[0].forwards = 0
    if rows.holds_neural.any():
        late.step[0].forwards = min(decide_forwards(late, running), planner.limits[0].neural_cap)
    state = state_of(planner, False)
    weigh_ngram(state.memory, rows, state.price, state.cap)
    state.memory.ngram_value_before[:running] = state.memory.ngram_value[:running]
    return int(late.step[0].forwards)


@compiled
def budget(address: int) -> int:
    """How many drafted tokens this step can verify, all rows together."""
    return int(planner_at(address).late.step[0].budget)


@compiled
def forwards_unread(address: int) -> int:
    """How many forwards would be worth their time if nothing were learned from their tokens."""
    return best_forwards(state_of(planner_at(address), False))


@compiled
def revise_columns(
    address: int,
    depth: int,
    tokens: Ints,
    confidences: Floats,
    length: Ints,
    agree: Ints,
    seen: Ints,
    available: Ints,
    start: Ints,
    known: Ints,
) -> None:
    """The same as `revise`, the matches behind the tokens given column by column.

    `known` are the tokens at `start`, where the match lies in known text and not in the draft.
    """
    rows = rows_of(planner_at(address))
    copied = known.copy()
    for row in range(copied.shape[0]):
        inside = start[row] - rows.prompt_tokens[row] - rows.position[row]
        if length[row] > 0 and 0 <= inside < depth:
            copied[row] = tokens[row, inside]
    behind = BehindMatches(length, agree, seen, available, copied)
    revise(address, depth, tokens, confidences, behind)


@compiled
def revise(
    address: int, depth: int, tokens: Ints, confidences: Floats, behind: BehindMatches
) -> None:
    """Revise what is expected of every row by its token at this depth, and the match behind it."""
    planner = planner_at(address)
    rows, memory = rows_of(planner), planner.memory
    price = _splice_price(planner, rows)
    for m in range(planner.models.shape[0]):
        revise_by_draft(
            model_at(planner.models[m]),
            memory,
            planner.knobs[m],
            rows,
            _rows_of_model(planner, m),
            tokens,
            confidences,
            depth,
            behind,
            price,
            planner.limits[0].cap,
        )
    if planner.recorder.at.shape[0] > 0:
        depths = np.full(rows.slots.shape[0], depth, np.int32)
        record_evidence(planner.recorder, memory, rows, depth)
        record_splices(planner.recorder, memory, rows, depths, behind, price)


@compiled
def proceeds(address: int, count: int) -> bool:
    """Whether the batch gains by another forward than the `count` there were."""
    return wants_forward(state_of(planner_at(address), True), count)


@compiled
def choose(address: int, count: int, neural_len: Ints, ngram_len: Ints) -> bool:
    """Choose lengths after `count` forwards; whether `splice` is still to be called."""
    planner = planner_at(address)
    reads_drafts = planner.limits[0].reads_drafts > 0
    state = state_of(planner, reads_drafts)
    if not planner.limits[0].is_late:
        choose_lengths(state, count, neural_len, ngram_len)
        return not reads_drafts and bool(neural_len.any())
    choose_within(state, planner.late, count, neural_len, ngram_len)
    if not reads_drafts and neural_len.any():
        return True
    _end_choice(planner, state, count, neural_len, ngram_len)
    return False


@compiled
def _end_choice(
    planner: Planner, state: BatchState, count: int, neural_len: Ints, ngram_len: Ints
) -> None:
    """Use the budget, and tell the host what was chosen."""
    use_budget(state, planner.late, count, neural_len, ngram_len)
    note_choice(planner.late, state.rows.slots, state.price, False)


@compiled
def note_lengths(address: int, neural_len: Ints, ngram_len: Ints) -> None:
    """Note what is expected of lengths that somebody else chose."""
    note_expected(planner_at(address).memory, neural_len, ngram_len)


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
    price = _splice_price(planner, rows)
    unread = np.empty((0, 0), np.int32)
    for m in range(planner.models.shape[0]):
        predict_splices(
            model_at(planner.models[m]),
            memory,
            rows,
            _rows_of_model(planner, m),
            neural_len,
            unread,
            behind,
            price,
            planner.limits[0].cap,
        )
    if planner.limits[0].is_late:
        _end_choice(planner, state_of(planner, False), 0, neural_len, ngram_len)
    for row in range(rows.slots.shape[0]):
        if neural_len[row] > 0:
            ngram_len[row] = memory.splice_len[row, neural_len[row]]
            memory.expected[row, SPLICE] = memory.splice_tokens[row, neural_len[row]]
    if planner.recorder.at.shape[0] > 0:
        record_splices(planner.recorder, memory, rows, neural_len, behind, price)


@compiled
def learn(
    address: int,
    emitted: Ints,
    emitted_tokens: Ints,
    drafted: Ints,
    neural_drafted: Ints,
    accepted: Ints,
    judged: Bools,
    forwards: int,
    seconds: float,
) -> None:
    """Update histories, throughput, the sources' records and what the drafter brings, by a step.

    A row that emitted nothing has left the batch: neither time nor tokens were its. Where a row's
    proposal was not verified, it tells nothing of the drafter either.
    """
    planner = planner_at(address)
    rows, memory, costs = rows_of(planner), planner.memory, planner.costs
    remember(rows, memory.history, emitted, emitted_tokens, drafted, neural_drafted, accepted)
    count = context = tokens = holders = 0
    for row in range(rows.slots.shape[0]):
        tokens += emitted_tokens[row]
        holders += rows.holds_neural[row] and judged[row]
        if emitted_tokens[row] > 0:
            count += 1
            context += rows.prompt_tokens[row] + rows.position[row]
    if count == 0:
        return
    rate = rate_of(memory, planner.knobs[0], costs, count, context)
    _update_records(planner, rows, drafted, neural_drafted, accepted)
    gain = 0.0
    charge = token_price(costs, rate)
    if planner.limits[0].is_late:
        charge *= _share_of_price(planner, rate)
    for row in range(rows.slots.shape[0]):
        if rows.holds_neural[row] and judged[row]:
            gain += accepted[row] - charge * drafted[row] - memory.ngram_value_before[row]
        memory.output_tokens[rows.slots[row]] = rows.position[row] + emitted_tokens[row]
    admission.update_drafter(memory, costs, rate, count, holders, context, forwards, gain)
    count_step(memory, planner.knobs[0], tokens, seconds)


@compiled
def _share_of_price(planner: Planner, rate: float) -> float:
    """The share of the full price at which tokens were taken: a budget not used up gives them away.

    Counted in full, what a budget was filled with would speak against the drafter.
    """
    price = token_price(planner.costs, rate)
    return min(1.0, planner.late.step[0].price / price) if price > 0 else 1.0


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
