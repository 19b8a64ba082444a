"""What a model expects of every row's drafts, before and while they are made.

A mind speaks for the rows named in `speaks_for` (indices into the batch): in serving for all of
them, in a cross-fitted evaluation for the requests that it never saw.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.desk import (
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    NEURAL,
    NEURAL_EXPONENT,
    NGRAM,
    NGRAM_EXPONENT,
    SPLICE,
    SPLICE_TOKENS,
    SPLICE_WEIGHT,
    USED,
    Desk,
)
from adaspec.policy.trust import trust_in, trusted
from adaspec.predict.evidence import observe_evidence
from adaspec.predict.features import CANDIDATE, Found, Rows, observe
from adaspec.predict.kernels import predict_rows
from adaspec.predict.model import (
    ACCEPTED_BEFORE,
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


@compiled
def consider(
    mind: Mind, desk: Desk, knobs: Array, rows: Rows, speaks_for: Ints, price: float
) -> None:
    """Predict the survival curves of these rows from what is known before drafting.

    At `price` tokens for each verified, the splices that neural drafts may hope for cost something.
    """
    observe(rows, speaks_for, desk.history, mind.tables, desk.keys, desk.x)
    count = speaks_for.shape[0]
    predict_rows(mind.before, desk.x, count, desk.before, desk.heads)
    ngram_trust, neural_trust = trust_in(desk, knobs, NGRAM), trust_in(desk, knobs, NEURAL)
    splice_trust = trust_in(desk, knobs, SPLICE)
    desk.trust[NGRAM, USED], desk.trust[NEURAL, USED] = ngram_trust, neural_trust
    desk.trust[SPLICE, USED] = splice_trust
    weight, charge = knobs[SPLICE_WEIGHT] * splice_trust, knobs[SPLICE_TOKENS] * price
    for place in range(count):
        row = speaks_for[place]
        said = desk.heads[place]
        first = trusted(said[NGRAM_FIRST], knobs[NGRAM_EXPONENT], ngram_trust)
        if rows.length[row] == 0:
            first = 0.0
        fill_survival(first, said[NGRAM_MORE], mind.ngram, desk.ngram[row])
        first = trusted(said[NEURAL_FIRST], knobs[NEURAL_EXPONENT], neural_trust)
        if not rows.holds_neural[row]:
            first = 0.0
        fill_survival(first, said[NEURAL_MORE], mind.neural, desk.neural[row])
        gain = np.expm1(said[SPLICE_GAIN])
        gain = min(gain, LONGEST_SPLICE) * weight - charge
        desk.gain[row] = gain if gain > 0 else 0.0
        for k in range(LONGEST_NEURAL + 1):
            desk.hope[row, k] = desk.neural[row, k] * desk.gain[row]
            desk.splice_len[row, k] = 0
            desk.splice_said[row, k] = 0.0
        desk.agreed[row] = 0
        desk.least[row] = np.nan


@compiled
def take_evidence(
    mind: Mind,
    desk: Desk,
    knobs: Array,
    rows: Rows,
    speaks_for: Ints,
    tokens: Ints,
    confidences: Floats,
    depth: int,
    behind: Found,
    price: float,
    cap: int,
) -> None:
    """Change the curves of these rows, where they hold the drafter, by its token at this depth.

    `behind` is the match behind that token: it tells whether the draft was seen before, and what
    could be spliced on. Where the drafter gave no token (-1), nothing survives from here on.
    """
    asked = 0
    for row in speaks_for:
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
            behind.length[row],
            behind.agree[row],
            behind.seen[row],
            desk.evidence_x[asked],
        )
        asked += 1
        for kind in range(2):
            said = confidences[row, j, kind]
            if not said >= desk.least[row, kind]:
                desk.least[row, kind] = said
    predict_rows(mind.evidence, desk.evidence_x, asked, desk.evidence, desk.evidence_heads)
    trust = desk.trust[NGRAM, USED]
    asked = 0
    for row in speaks_for:
        if not rows.holds_neural[row]:
            continue
        heard = desk.evidence_heads[asked]
        asked += 1
        if depth > 1:
            _revise(desk, row, depth - 1, heard[ACCEPTED_BEFORE])
            # A copy that says what this token says is had by keeping it; another one is right only
            # where this token is wrong.
            wrong = max(0.0, 1.0 - heard[ACCEPTED_NEXT])
            for j in range(1, LONGEST_SPLICE + 1):
                desk.spliced[row, depth - 1, j] *= wrong
            for k in range(1, depth):
                weigh_splice(desk, row, k, price)
        was = desk.neural[row, depth]
        now = 0.0
        if tokens[row, depth - 1] >= 0 and heard[ACCEPTED_NEXT] > 0:
            now = desk.neural[row, depth - 1] * min(1.0, heard[ACCEPTED_NEXT])
        if depth == 1:
            now = min(1.0, now * desk.trust[NEURAL, USED])
        for k in range(depth, LONGEST_NEURAL + 1):
            desk.neural[row, k] = desk.neural[row, k] * now / was if was > 0 else 0.0
            desk.hope[row, k] = desk.neural[row, k] * desk.gain[row]
        if rows.length[row] > 0:
            first = trusted(heard[NGRAM_AFTER], knobs[NGRAM_EXPONENT], trust)
            scale = first / desk.ngram[row, 1] if desk.ngram[row, 1] > 0 else 0.0
            for k in range(1, LONGEST_NGRAM + 1):
                desk.ngram[row, k] = min(1.0, desk.ngram[row, k] * scale)
            # Tokens that both propose are right together, and where they part one of them is wrong.
            at = min(desk.agreed[row], depth)
            if at == depth:
                _raise_to(desk.ngram[row], at, desk.neural[row, at])
            elif at == depth - 1:
                left = desk.neural[row, at] - desk.neural[row, depth]
                _lower_to(desk.ngram[row], depth, max(left, 0.0))
    depths = np.full(rows.slots.shape[0], depth, np.int32)
    weigh_splices(mind, desk, rows, speaks_for, depths, tokens, behind, price, cap)


@compiled
def _revise(desk: Desk, row: int, depth: int, survived: float) -> None:
    """A later token also tells whether those up to `depth` were right: S(depth) is `survived`.

    Of what could have gone wrong up to there, nothing became likelier than the rest.
    """
    survives = desk.neural[row]
    was = survives[depth]
    now = min(max(survived, 0.0), 1.0)
    if was <= 0 or was >= 1:
        return
    scale = (1.0 - now) / (1.0 - was)
    for k in range(1, depth + 1):
        survives[k] = 1.0 - (1.0 - survives[k]) * scale
    for k in range(depth + 1, LONGEST_NEURAL + 1):
        survives[k] *= now / was


@compiled
def may_splice(holds: bool, length: int, depth: int, reached: float, price: float) -> bool:
    """Whether there is a match to splice on behind so many tokens of a row, and it could pay."""
    return holds and depth > 0 and length > 0 and reached >= price


@compiled
def weigh_splices(
    mind: Mind,
    desk: Desk,
    rows: Rows,
    speaks_for: Ints,
    depths: Ints,
    tokens: Ints,
    behind: Found,
    price: float,
    cap: int,
) -> None:
    """How far to splice behind so many neural tokens, and what it is worth, by the match there."""
    # Taken out of their tuples once: handing those to a function row by row costs more than all.
    holds, neural, length = rows.holds_neural, desk.neural, behind.length
    asked = 0
    for row in speaks_for:
        depth = depths[row]
        if depth > 0:
            # Nothing survives: what lies behind in the curve is never read.
            desk.spliced[row, depth, 1] = 0.0
            desk.hope[row, depth] = desk.splice_said[row, depth] = 0.0
            desk.splice_len[row, depth] = 0
        if not may_splice(holds[row], length[row], depth, neural[row, depth], price):
            continue
        observe_splice(
            behind.length[row],
            behind.agree[row],
            behind.seen[row],
            behind.available[row],
            depth,
            desk.neural[row, depth],
            float(rows.length[row]),
            desk.history[rows.slots[row]],
            rows.position[row],
            mind.tables,
            tokens[row, depth - 1] if tokens.shape[1] >= depth else -1,
            behind.copied[row],
            desk.keys,
            desk.splice_x[asked],
        )
        asked += 1
    predict_rows(mind.splice, desk.splice_x, asked, desk.splice, desk.splice_heads)
    asked = 0
    for row in speaks_for:
        depth = depths[row]
        if not may_splice(holds[row], length[row], depth, neural[row, depth], price):
            continue
        said = desk.splice_heads[asked]
        asked += 1
        first = trusted(said[SPLICE_FIRST], 1.0, desk.trust[SPLICE, USED])
        curve = desk.spliced[row, depth]
        fill_survival(first, said[SPLICE_MORE], mind.spliced, curve)
        room = max(min(behind.available[row], cap - depth), 0)
        for j in range(room + 1, LONGEST_SPLICE + 1):
            curve[j] = 0.0
        weigh_splice(desk, row, depth, price)


@compiled
def weigh_splice(desk: Desk, row: int, depth: int, price: float) -> None:
    """The best length of a splice behind `depth` neural tokens, and what it is worth."""
    reached, curve = desk.neural[row, depth], desk.spliced[row, depth]
    length, said, worth = 0, 0.0, 0.0
    for j in range(1, LONGEST_SPLICE + 1):
        if curve[j] <= 0 or reached * curve[j] < price:
            break
        length = j
        said += curve[j]
        worth += reached * curve[j] - price
    desk.splice_len[row, depth] = length
    desk.splice_said[row, depth], desk.hope[row, depth] = said, worth


@compiled
def _raise_to(survives: Array, at: int, least: float) -> None:
    """Lift a curve to `least` at `at`, what lies behind in proportion."""
    was = survives[at]
    if least <= was:
        return
    for k in range(1, at + 1):
        survives[k] = max(survives[k], least)
    for k in range(at + 1, LONGEST_NGRAM + 1):
        survives[k] = survives[k] * least / was if was > 0 else 0.0


@compiled
def _lower_to(survives: Array, at: int, most: float) -> None:
    """Press a curve to `most` at `at`, what lies behind in proportion."""
    was = survives[at]
    if most >= was:
        return
    for k in range(at, LONGEST_NGRAM + 1):
        survives[k] = survives[k] * most / was
