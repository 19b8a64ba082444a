"""What steps lost against the best choice in hindsight, taken apart by cause.

The least time from a position to a request's end is that of `oracle:dp-splice`, in lockstep with as
many copies of the request as there are rows: every row's share of a step. What a step of a row lost
is its share, and the least time from where it ended, less the least time from where it began. So
losses add up to a request's time less the least. A step is led to the best choice at its position
by four moves, and a cause has lost what its move gains:

    too long         only the tokens that the output took are verified
    forward in vain  only the forwards run of which the row took the token
    too short        the best right draft of the row's own source; of any, where none was drafted
                     (too long, where that is a shorter one: a later step brings the rest cheaper;
                     a forward in vain, where it is as long: a splice brings the rest cheaper)
    wrong source     the best right draft of any; and holding the drafter, or not, as is better
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Costs, Deciding, StepShape, step_s
from adaspec.jit import compiled
from adaspec.replay.oracles import fill_cheapest
from adaspec.replay.recording import Columns, Recording

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

PARTS = ("too_long", "in_vain", "too_short", "wrong_source")
TOO_LONG, IN_VAIN, TOO_SHORT, WRONG_SOURCE, LEAST = range(5)
ANY, NGRAM, NEURAL = range(3)


class Hindsight(NamedTuple):
    """The least seconds from every position on, of all copies, at one number of them."""

    copies: int
    cap: int
    neural_cap: int
    least_s: Array
    """(2, positions + 1): without the neural drafter and with it; position i of a request is
    `offset` + i, and at its end 0."""


class Share(NamedTuple):
    """What a row's share of a step depends on."""

    copies: int
    context: int
    """Known tokens of all copies."""
    holds_neural: bool


def hindsight(recording: Recording, copies: int, cost: CostModel, cap: int) -> Hindsight:
    """The least times of all requests of a recording."""
    columns = recording.columns
    costs = cost.charged_to(Deciding.NOTHING).constants()
    least_s = np.full((2, int(columns.offset[-1]) + 1), np.inf)
    _fill_least(columns, copies, cap, 0, False, costs, least_s[0])
    if recording.neural_cap:
        _fill_least(columns, copies, cap, recording.neural_cap, True, costs, least_s[1])
    return Hindsight(copies, cap, recording.neural_cap, least_s)


@compiled
def _fill_least(
    columns: Columns,
    copies: int,
    cap: int,
    neural_cap: int,
    holds: bool,
    costs: Costs,
    least_s: Array,
) -> None:
    for r in range(columns.length.shape[0]):
        begin, length = columns.offset[r], columns.length[r]
        best = np.empty(length + 1)
        fill_cheapest(columns, r, copies, cap, neural_cap, True, holds, costs, best)
        # The place of a request's end is the next one's position 0, at which nothing begins.
        least_s[begin + 1 : begin + length + 1] = best[1:]


@compiled
def add_losses(
    columns: Columns,
    hindsight: Hindsight,
    request: Longs,
    position: Longs,
    holds_neural: Bools,
    held_before: Longs,
    neural_len: Ints,
    ngram_len: Ints,
    accepted: Ints,
    forwards: int,
    costs: Costs,
    sums: Array,
) -> None:
    """Add a step to `sums`, in seconds: what each of the `PARTS` lost, and the least.

    `held_before` says whether each row held the drafter in its last step, -1 in its first.
    """
    copies = hindsight.copies
    for row in range(request.shape[0]):
        r, p = request[row], position[row]
        i, left = columns.offset[r] + p, columns.length[r] - p - 1
        held, before = int(holds_neural[row]), held_before[row]
        least_s = hindsight.least_s[held]
        share = Share(copies, copies * (columns.prompt[r] + p), bool(held))
        drafted, useful = neural_len[row] + ngram_len[row], min(accepted[row], left)
        taken = min(useful, neural_len[row])
        source = NEURAL if neural_len[row] > 0 else NGRAM if drafted > 0 else ANY
        rest_s = least_s[i + useful + 1]
        made = _step_s(costs, share, drafted, forwards) + rest_s
        cut = _step_s(costs, share, useful, forwards) + rest_s
        lean = _step_s(costs, share, useful, taken) + rest_s
        own, length = lean, useful
        if source == ANY:
            own, length = least_s[i], left
        else:
            own, length = _best_of(columns, hindsight, i, left, source, share, costs, lean, useful)
        sums[TOO_LONG] += (made - cut) / copies
        sums[IN_VAIN] += (cut - lean) / copies
        cause = TOO_SHORT if length > useful else TOO_LONG if length < useful else IN_VAIN
        sums[cause] += (lean - own) / copies
        sums[WRONG_SOURCE] += (own - least_s[i]) / copies
        sums[LEAST] += (least_s[i] - rest_s) / copies
        if before != held:
            with_either = min(hindsight.least_s[0, i], hindsight.least_s[1, i])
            least_before = with_either if before < 0 else hindsight.least_s[before, i]
            sums[WRONG_SOURCE] += (least_s[i] - least_before) / copies
            sums[LEAST] += (least_before - least_s[i]) / copies


@compiled
def _step_s(costs: Costs, share: Share, tokens: int, forwards: int) -> float:
    """The seconds of a step in which every copy verifies so many drafted tokens."""
    copies = share.copies
    shape = StepShape(copies, share.context, copies * tokens, 0, 0, forwards, share.holds_neural, 0)
    return step_s(costs, shape)


@compiled
def _best_of(
    columns: Columns,
    hindsight: Hindsight,
    i: int,
    left: int,
    source: int,
    share: Share,
    costs: Costs,
    least: float,
    length: int,
) -> tuple[float, int]:
    """The least seconds to the end by a right draft of a source, and its length.

    It is no more than `least`, that of the draft of `length` that was made: a policy may copy from
    another place than the index would.
    """
    most, cap = 0, hindsight.cap
    if source == NEURAL:
        most = min(columns.neural[i], hindsight.neural_cap, cap, left)
    for k in range(most + 1):
        longest = k
        if (source == NGRAM or k > 0) and k < left:
            longest = k + min(columns.run[i + k], cap - k, left - k)
        for tokens in range(k, longest + 1):
            seconds = _step_s(costs, share, tokens, k)
            seconds += hindsight.least_s[int(share.holds_neural), i + tokens + 1]
            if seconds < least - 1e-15:
                least, length = seconds, tokens
    return least, length
