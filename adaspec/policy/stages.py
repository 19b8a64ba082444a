"""The learned decision, stage by stage, as compiled functions over struct-of-arrays.

Objective: emitted tokens per second of the whole batch. Tokens are traded against time at the
running rate, so that verifying one token costs `price` tokens. The policy's class and the
replay's fast loop call the very same functions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import forward_s, paid_forwards, step_s, verify_s
from adaspec.jit import compiled
from adaspec.predict.evidence import observe_evidence
from adaspec.predict.features import CANDIDATE, Rows, observe, remember
from adaspec.predict.kernels import Scratch, predict_rows
from adaspec.predict.model import (
    ACCEPTED_NEXT,
    NEURAL_FIRST,
    NEURAL_MORE,
    NGRAM_AFTER,
    NGRAM_FIRST,
    NGRAM_MORE,
    SPLICE_FIRST,
    SPLICE_GAIN,
    SPLICE_MORE,
    Mind,
)
from adaspec.predict.splicing import observe_splice
from adaspec.predict.survival import fill_survival

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

LONGEST_NEURAL = 8
LONGEST_NGRAM = 48
LONGEST_SPLICE = 16

KNOBS = {
    "ngram_exponent": 1.15,
    "neural_exponent": 1.0,
    "splice_weight": 0.7,
    "pace_steps": 400.0,
    "prior_speedup": 2.0,
    "prior_steps": 10.0,
    "recalibrate": 1.0,
}
"""The planner's knobs and their defaults; training tunes some of them."""
_NGRAM_EXPONENT, _NEURAL_EXPONENT, _SPLICE_WEIGHT, _PACE, _PRIOR, _PRIOR_STEPS, _RECAL = range(7)

PACE_RING = 1000
_SUM_TOKENS, _SUM_TIME, _STEPS = range(3)
_NGRAM, _NEURAL = 0, 1
_SAID, _CAME, _USED = 0, 1, 2
_FORGET = 0.999
"""What recalibration keeps of a source at each of its drafts: it is evidence that makes old."""
_FORGET_IDLE = 0.999
"""The same in a step in which the source drafts nothing: one day it is tried again."""
_IMAGINED = 4.0
"""Accepted tokens that recalibration imagines to have come as said."""
_MOST_TRUST = 1.15

_WORTH, _SPENT, _WATCHED, _HOLDING, _HELD, _RESTED, _PATIENCE = range(7)
GUARD = 7
_GUARD_MEMORY = 0.99
_GUARD_ROW_MEMORY = 0.998
_GUARD_STEPS = 30.0
_LONGEST_PROBE = 200.0
_LEAST_PATIENCE, _MOST_PATIENCE = 8.0, 64.0


class Desk(NamedTuple):
    """Working memory of one policy, for as many slots as there are."""

    history: Array
    x: Floats
    heads: Array
    neural: Array
    """(rows, LONGEST_NEURAL + 1) survival of neural drafts."""
    ngram: Array
    gain: Array
    """Expected tokens of a splice behind neural tokens that are all accepted."""
    ngram_value: Array
    ngram_best: Ints
    splice_x: Floats
    splice_heads: Array
    spliced: Array
    evidence_x: Floats
    evidence_heads: Array
    agreed: Ints
    least: Floats
    said: Array
    """(rows, 2) tokens expected of what was proposed, per source."""
    trust: Array
    """(2, 3) per source tokens said before trust, tokens that came, and the trust in use."""
    guard: Array
    """What the drafter was worth and what it took, in tokens, and when to try it again."""
    ring: Array
    pace: Array
    keys: NDArray[np.uint64]
    before: Scratch
    splice: Scratch
    evidence: Scratch


@compiled
def rate_of(desk: Desk, knobs: Array, cost: Array, rows: int, context: int) -> float:
    """Tokens per second at the running pace, at first a guess from what no speculation would do."""
    plain = rows / step_s(cost, rows, context, 0, False)
    steps = min(desk.pace[_STEPS], knobs[_PACE])
    guess = knobs[_PRIOR_STEPS] * rows / plain
    tokens = desk.pace[_SUM_TOKENS] + knobs[_PRIOR] * plain * guess
    return tokens / (desk.pace[_SUM_TIME] + guess) if steps > 0 else knobs[_PRIOR] * plain


@compiled
def context_of(rows: Rows) -> int:
    """Known tokens of all rows."""
    total = 0
    for row in range(rows.slots.shape[0]):
        total += rows.prompt_tokens[row] + rows.position[row]
    return total


@compiled
def trust_in(desk: Desk, knobs: Array, source: int) -> float:
    """What came over what was said of a source, shrunk to 1."""
    if knobs[_RECAL] <= 0:
        return 1.0
    came = desk.trust[source, _CAME] + _IMAGINED
    said = desk.trust[source, _SAID] + _IMAGINED
    return min(_MOST_TRUST, came / said)


@compiled
def trusted(said: float, exponent: float, trust: float) -> float:
    """A head's probability after its knob and its record; 0 where it says nothing sensible."""
    return min(1.0, min(1.0, said) ** exponent * trust) if said > 0 else 0.0


@compiled
def consider(mind: Mind, desk: Desk, knobs: Array, rows: Rows) -> None:
    """Predict every row's survival curves from what is known before drafting."""
    count = rows.slots.shape[0]
    observe(rows, desk.history, mind.tables, desk.keys, desk.x)
    predict_rows(mind.before, desk.x, count, desk.before, desk.heads)
    ngram_trust, neural_trust = trust_in(desk, knobs, _NGRAM), trust_in(desk, knobs, _NEURAL)
    desk.trust[_NGRAM, _USED], desk.trust[_NEURAL, _USED] = ngram_trust, neural_trust
    for row in range(count):
        said = desk.heads[row]
        first = trusted(said[NGRAM_FIRST], knobs[_NGRAM_EXPONENT], ngram_trust)
        if rows.length[row] == 0:
            first = 0.0
        fill_survival(first, said[NGRAM_MORE], mind.ngram, desk.ngram[row])
        first = trusted(said[NEURAL_FIRST], knobs[_NEURAL_EXPONENT], neural_trust)
        if not rows.holds_neural[row]:
            first = 0.0
        fill_survival(first, said[NEURAL_MORE], mind.neural, desk.neural[row])
        gain = np.expm1(said[SPLICE_GAIN])
        desk.gain[row] = min(gain, LONGEST_SPLICE) * knobs[_SPLICE_WEIGHT] if gain > 0 else 0.0
        desk.agreed[row] = 0
        desk.least[row] = np.nan


@compiled
def weigh_ngram(desk: Desk, rows: Rows, price: float, cap: int) -> None:
    """Each row's best n-gram length at this price per token, and what it is worth."""
    for row in range(rows.slots.shape[0]):
        worth, length = 0.0, 0
        for j in range(1, min(rows.available[row], cap, LONGEST_NGRAM) + 1):
            if desk.ngram[row, j] < price:
                break
            worth += desk.ngram[row, j] - price
            length = j
        desk.ngram_value[row], desk.ngram_best[row] = worth, length


@compiled
def neural_value(desk: Desk, row: int, length: int, price: float, splices: bool) -> float:
    """What a neural draft of this length is worth to a row, splice included."""
    worth = 0.0
    for j in range(1, length + 1):
        worth += desk.neural[row, j] - price
    if splices and length > 0:
        worth += desk.neural[row, length] * desk.gain[row]
    return worth


@compiled
def best_neural(desk: Desk, row: int, most: int, price: float, cap: int) -> tuple[int, float]:
    """The neural length up to `most` that is worth most, and its worth; 0 where none pays."""
    length, worth = 0, 0.0
    for k in range(1, most + 1):
        found = neural_value(desk, row, k, price, k < cap)
        if found > worth:
            length, worth = k, found
    return length, worth


@compiled
def batch_value(desk: Desk, rows: Rows, most: int, price: float, cap: int) -> float:
    """What all rows' best plans are worth with so many forwards at hand."""
    total = 0.0
    for row in range(rows.slots.shape[0]):
        _, worth = best_neural(desk, row, most, price, cap)
        total += max(worth, desk.ngram_value[row])
    return total


@compiled
def plan_forwards(
    mind: Mind, desk: Desk, knobs: Array, rows: Rows, cost: Array, cap: int, neural_cap: int
) -> int:
    """Predict every row, and say how many forwards the batch wants."""
    consider(mind, desk, knobs, rows)
    return forwards_of(desk, knobs, rows, cost, cap, neural_cap)


@compiled
def forwards_of(
    desk: Desk, knobs: Array, rows: Rows, cost: Array, cap: int, neural_cap: int
) -> int:
    """How many forwards are worth most: worth of the rows' plans less the forwards' time."""
    context = context_of(rows)
    count = rows.slots.shape[0]
    rate = rate_of(desk, knobs, cost, count, context)
    price = rate * token_s(cost, count)
    weigh_ngram(desk, rows, price, cap)
    holds = False
    for row in range(count):
        holds |= rows.holds_neural[row]
    if not holds:
        return 0
    best, best_value = 0, -np.inf
    for forwards in range(min(neural_cap, LONGEST_NEURAL, cap) + 1):
        value = batch_value(desk, rows, forwards, price, cap)
        value -= rate * paid_forwards(cost, forwards, True) * forward_s(cost, context)
        # More forwards at the same value: evidence that costs nothing.
        if value > best_value - 1e-12:
            best, best_value = forwards, max(value, best_value)
    return best


@compiled
def token_s(cost: Array, rows: int) -> float:
    """Seconds that verifying one more token adds, averaged over a few tokens a row."""
    some = 4 * rows
    return (verify_s(cost, rows + some, 0) - verify_s(cost, rows, 0)) / some


@compiled
def take_evidence(
    mind: Mind,
    desk: Desk,
    knobs: Array,
    rows: Rows,
    tokens: Ints,
    confidences: Floats,
    depth: int,
) -> None:
    """Change every holding row's curves by what its token at this depth says.

    Where the drafter gave no token (-1), nothing survives from this depth on.
    """
    asked = 0
    for row in range(rows.slots.shape[0]):
        if not rows.holds_neural[row]:
            continue
        j = depth - 1
        # Behind the candidate's end both may be -1, and that is no agreement.
        drafted = tokens[row, j] >= 0
        agrees = drafted and depth <= CANDIDATE and rows.candidate[row, j] == tokens[row, j]
        if agrees and desk.agreed[row] == j:
            desk.agreed[row] = depth
        before = desk.neural[row, j]
        expected = desk.neural[row, depth] / before if before > 0 else 0.0
        observe_evidence(
            depth,
            expected,
            confidences[row, j],
            desk.agreed[row],
            float(rows.length[row]),
            desk.ngram[row, 1],
            before,
            desk.least[row],
            desk.evidence_x[asked],
        )
        asked += 1
        for kind in range(2):
            said = confidences[row, j, kind]
            if not said >= desk.least[row, kind]:
                desk.least[row, kind] = said
    predict_rows(mind.evidence, desk.evidence_x, asked, desk.evidence, desk.evidence_heads)
    trust = desk.trust[_NGRAM, _USED]
    asked = 0
    for row in range(rows.slots.shape[0]):
        if not rows.holds_neural[row]:
            continue
        said = desk.evidence_heads[asked]
        asked += 1
        was = desk.neural[row, depth]
        now = 0.0
        if tokens[row, depth - 1] >= 0 and said[ACCEPTED_NEXT] > 0:
            now = desk.neural[row, depth - 1] * min(1.0, said[ACCEPTED_NEXT])
        if depth == 1:
            now = min(1.0, now * desk.trust[_NEURAL, _USED])
        for k in range(depth, LONGEST_NEURAL + 1):
            desk.neural[row, k] = desk.neural[row, k] * now / was if was > 0 else 0.0
        if rows.length[row] > 0:
            first = trusted(said[NGRAM_AFTER], knobs[_NGRAM_EXPONENT], trust)
            scale = first / desk.ngram[row, 1] if desk.ngram[row, 1] > 0 else 0.0
            for k in range(1, LONGEST_NGRAM + 1):
                desk.ngram[row, k] = min(1.0, desk.ngram[row, k] * scale)
            # Tokens that both propose are right together.
            for k in range(1, desk.agreed[row] + 1):
                desk.ngram[row, k] = max(desk.ngram[row, k], desk.neural[row, k])
            for k in range(2, LONGEST_NGRAM + 1):
                desk.ngram[row, k] = min(desk.ngram[row, k], desk.ngram[row, k - 1])


@compiled
def goes_on(
    desk: Desk, knobs: Array, rows: Rows, cost: Array, cap: int, count: int, most: int
) -> bool:
    """Whether the batch gains by more forwards than `count`, up to `most`."""
    context = context_of(rows)
    rate = rate_of(desk, knobs, cost, rows.slots.shape[0], context)
    price = rate * token_s(cost, rows.slots.shape[0])
    weigh_ngram(desk, rows, price, cap)
    now = batch_value(desk, rows, count, price, cap)
    now -= rate * paid_forwards(cost, count, True) * forward_s(cost, context)
    for forwards in range(count + 1, most + 1):
        value = batch_value(desk, rows, forwards, price, cap)
        value -= rate * paid_forwards(cost, forwards, True) * forward_s(cost, context)
        if value > now:
            return True
    return False


@compiled
def choose(
    desk: Desk,
    knobs: Array,
    rows: Rows,
    cost: Array,
    cap: int,
    count: int,
    neural_len: Ints,
    ngram_len: Ints,
) -> None:
    """Per row: so many drafted tokens, or so many copied ones, or nothing."""
    context = context_of(rows)
    rate = rate_of(desk, knobs, cost, rows.slots.shape[0], context)
    price = rate * token_s(cost, rows.slots.shape[0])
    weigh_ngram(desk, rows, price, cap)
    for row in range(rows.slots.shape[0]):
        length, worth = best_neural(desk, row, count, price, cap)
        neural_len[row] = ngram_len[row] = 0
        if worth > desk.ngram_value[row]:
            neural_len[row] = length
        else:
            ngram_len[row] = desk.ngram_best[row]
    commit(desk, neural_len, ngram_len)


@compiled
def commit(desk: Desk, neural_len: Ints, ngram_len: Ints) -> None:
    """Note what is expected of the chosen lengths, to be held against what comes."""
    for row in range(neural_len.shape[0]):
        desk.said[row] = 0.0
        for j in range(1, min(neural_len[row], LONGEST_NEURAL) + 1):
            desk.said[row, _NEURAL] += desk.neural[row, j]
        if neural_len[row] == 0:
            for j in range(1, min(ngram_len[row], LONGEST_NGRAM) + 1):
                desk.said[row, _NGRAM] += desk.ngram[row, j]


@compiled
def splice(
    mind: Mind,
    desk: Desk,
    knobs: Array,
    rows: Rows,
    cost: Array,
    cap: int,
    neural_len: Ints,
    length: Ints,
    agree: Ints,
    seen: Ints,
    available: Ints,
    ngram_len: Ints,
) -> None:
    """How many copied tokens follow the neural ones, now that the match behind them is known."""
    context = context_of(rows)
    rate = rate_of(desk, knobs, cost, rows.slots.shape[0], context)
    price = rate * token_s(cost, rows.slots.shape[0])
    asked = 0
    for row in range(rows.slots.shape[0]):
        if neural_len[row] > 0 and length[row] > 0:
            observe_splice(
                length[row],
                agree[row],
                seen[row],
                available[row],
                neural_len[row],
                desk.neural[row, neural_len[row]],
                float(rows.length[row]),
                desk.history[rows.slots[row], 0],
                desk.splice_x[asked],
            )
            asked += 1
    predict_rows(mind.splice, desk.splice_x, asked, desk.splice, desk.splice_heads)
    asked = 0
    for row in range(rows.slots.shape[0]):
        if neural_len[row] > 0 and length[row] > 0:
            said = desk.splice_heads[asked]
            asked += 1
            fill_survival(said[SPLICE_FIRST], said[SPLICE_MORE], mind.spliced, desk.spliced)
            reached = desk.neural[row, neural_len[row]]
            most = min(available[row], cap - neural_len[row], LONGEST_SPLICE)
            for j in range(1, most + 1):
                if reached * desk.spliced[j] < price:
                    break
                ngram_len[row] = j


@compiled
def learn(
    desk: Desk,
    knobs: Array,
    rows: Rows,
    cost: Array,
    emitted: Ints,
    emitted_tokens: Ints,
    drafted: Ints,
    neural_drafted: Ints,
    accepted: Ints,
    forwards: int,
    seconds: float,
) -> None:
    """Carry on what came: histories, the pace, the trust in what was said, the drafter's worth."""
    remember(rows, desk.history, emitted, emitted_tokens, neural_drafted, accepted)
    count = rows.slots.shape[0]
    context = context_of(rows)
    rate = rate_of(desk, knobs, cost, count, context)
    price = rate * token_s(cost, count)
    tokens = holders = ngram_rows = neural_rows = 0
    came_ngram = came_neural = said_ngram = said_neural = worth = 0.0
    for row in range(count):
        tokens += emitted_tokens[row]
        holders += rows.holds_neural[row]
        if neural_drafted[row] > 0:
            neural_rows += 1
            said_neural += desk.said[row, _NEURAL]
            came_neural += min(accepted[row], neural_drafted[row])
            worth += accepted[row] - price * drafted[row] - desk.ngram_value[row]
        elif drafted[row] > 0:
            ngram_rows += 1
            said_ngram += desk.said[row, _NGRAM]
            came_ngram += accepted[row]
    weigh_record(desk, _NGRAM, said_ngram, came_ngram, ngram_rows)
    weigh_record(desk, _NEURAL, said_neural, came_neural, neural_rows)
    spent = rate * paid_forwards(cost, forwards, holders > 0) * forward_s(cost, context)
    watch(desk, worth, spent, count, holders)
    window = int(knobs[_PACE])
    at = int(desk.pace[_STEPS]) % window
    desk.pace[_SUM_TOKENS] += tokens - desk.ring[at, 0]
    desk.pace[_SUM_TIME] += seconds - desk.ring[at, 1]
    desk.ring[at, 0], desk.ring[at, 1] = tokens, seconds
    desk.pace[_STEPS] += 1.0


@compiled
def weigh_record(desk: Desk, source: int, said: float, came: float, drafts: int) -> None:
    """Hold what came of a source's drafts against what was said of them before trust."""
    record = desk.trust[source]
    fade = _FORGET**drafts if drafts > 0 else _FORGET_IDLE
    # Held against what trust had left of it, a record would correct only half of what is wrong.
    used = record[_USED]
    record[_SAID] = record[_SAID] * fade + (said / used if used > 0 else 0.0)
    record[_CAME] = record[_CAME] * fade + came


@compiled
def watch(desk: Desk, worth: float, spent: float, rows: int, holders: int) -> None:
    """Keep the drafter's account: what it was worth, were every row to hold it, and what it took.

    One holder pays for a whole batch's keep-alive, so its worth alone would never bring the
    drafter back.
    """
    guard = desk.guard
    guard[_HOLDING] = 1.0 if holders > 0 else 0.0
    if holders == 0:
        guard[_RESTED] += 1.0
        return
    fade = max(_GUARD_MEMORY, _GUARD_ROW_MEMORY**rows)
    guard[_WORTH] = guard[_WORTH] * fade + worth * rows / holders
    guard[_SPENT] = guard[_SPENT] * fade + spent
    guard[_WATCHED] = guard[_WATCHED] * fade + 1.0
    guard[_HELD] = min(guard[_HELD] + 1.0, _LONGEST_PROBE)
    guard[_RESTED] = 0.0


@compiled
def admits(desk: Desk) -> bool:
    """Whether a request that enters now shall hold the neural drafter: while it earns its keep.

    Once it does not, one request at a time still gets it, to notice when that changes: after a
    rest that is a multiple of the steps for which it was last held, doubled at every failure.
    """
    guard = desk.guard
    if guard[_WATCHED] < _GUARD_STEPS or guard[_WORTH] >= guard[_SPENT]:
        guard[_PATIENCE] = _LEAST_PATIENCE
        return True
    if guard[_HOLDING] > 0 or guard[_RESTED] < guard[_PATIENCE] * guard[_HELD]:
        return False
    guard[_PATIENCE] = min(2.0 * guard[_PATIENCE], _MOST_PATIENCE)
    guard[_HOLDING], guard[_HELD] = 1.0, 0.0
    return True
