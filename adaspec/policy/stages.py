"""The learned decision, stage by stage, as compiled functions over struct-of-arrays.

Objective: emitted tokens per second of the whole batch. The policy's class and the replay's fast
loop call the very same functions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import verify_s
from adaspec.jit import compiled
from adaspec.policy.choosing import choose
from adaspec.policy.desk import NEURAL, NGRAM, SPLICE, Desk
from adaspec.policy.expectation import consider, take_evidence, weigh_splices
from adaspec.policy.guard import admits, keeps, watch
from adaspec.policy.pace import keep_pace, rate_of
from adaspec.policy.planning import forwards_of, goes_on, price_of
from adaspec.policy.trust import commit, weigh_record
from adaspec.predict.features import Found, Rows, remember
from adaspec.predict.model import Mind

__all__ = [
    "admits",
    "choose",
    "commit",
    "consider",
    "forwards_of",
    "goes_on",
    "keeps",
    "learn",
    "price_of",
    "splice",
    "take_evidence",
]

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


@compiled
def splice(
    mind: Mind,
    desk: Desk,
    rows: Rows,
    speaks_for: Ints,
    price: float,
    cap: int,
    neural_len: Ints,
    behind: Found,
    ngram_len: Ints,
) -> None:
    """How many copied tokens follow the neural ones, where only now the match behind is known."""
    unread = np.empty((0, 0), np.int32)
    weigh_splices(mind, desk, rows, speaks_for, neural_len, unread, behind, price, cap)
    for row in speaks_for:
        if neural_len[row] > 0:
            ngram_len[row] = desk.splice_len[row, neural_len[row]]
            desk.said[row, SPLICE] = desk.splice_said[row, neural_len[row]]


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
    judged: Bools,
    forwards: int,
    seconds: float,
) -> None:
    """Carry on what came: histories, the pace, the trust in what was said, the drafter's worth.

    A row of which nothing came has left the batch: neither time nor tokens were its. Where a row's
    proposal was not judged, it tells nothing of the drafter either.
    """
    remember(rows, desk.history, emitted, emitted_tokens, drafted, neural_drafted, accepted)
    count = context = 0
    for row in range(rows.slots.shape[0]):
        if emitted_tokens[row] > 0:
            count += 1
            context += rows.prompt_tokens[row] + rows.position[row]
    if count == 0:
        return
    rate = rate_of(desk, knobs, cost, count, context)
    tokens = total = holders = ngram_rows = neural_rows = spliced_rows = 0
    came_ngram = came_neural = came_splice = worth = 0.0
    said_ngram = said_neural = said_splice = 0.0
    for row in range(rows.slots.shape[0]):
        tokens += emitted_tokens[row]
        total += drafted[row]
        holders += rows.holds_neural[row] and judged[row]
        if neural_drafted[row] > 0:
            neural_rows += 1
            said_neural += desk.said[row, NEURAL]
            came_neural += min(accepted[row], neural_drafted[row])
            if drafted[row] > neural_drafted[row] and accepted[row] >= neural_drafted[row]:
                spliced_rows += 1
                said_splice += desk.said[row, SPLICE]
                came_splice += accepted[row] - neural_drafted[row]
        elif drafted[row] > 0:
            ngram_rows += 1
            said_ngram += desk.said[row, NGRAM]
            came_ngram += accepted[row]
    weigh_record(desk, NGRAM, said_ngram, came_ngram, ngram_rows)
    weigh_record(desk, NEURAL, said_neural, came_neural, neural_rows)
    weigh_record(desk, SPLICE, said_splice, came_splice, spliced_rows)
    charge = rate * (verify_s(cost, count + total, 0) - verify_s(cost, count, 0)) / max(total, 1)
    for row in range(rows.slots.shape[0]):
        if rows.holds_neural[row] and judged[row]:
            worth += accepted[row] - charge * drafted[row] - desk.alone[row]
        desk.known[rows.slots[row]] = rows.position[row] + emitted_tokens[row]
    watch(desk, cost, rate, count, holders, context, forwards, worth)
    keep_pace(desk, knobs, tokens, seconds)
