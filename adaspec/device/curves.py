"""The survival curves of `policy.planner.curves`, for all rows at once.

They are float64, as on the host. What a row does not have (a match, the drafter) is computed and
then masked.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.device.features import Rows, observe_evidence, observe_splice
from adaspec.device.lookup import Match
from adaspec.device.model import DeviceModel
from adaspec.policy.planner.memory import (
    IMPOSSIBLE,
    LONGEST_NEURAL,
    LONGEST_SPLICE,
    NEURAL,
    NEURAL_EXPONENT,
    NGRAM,
    NGRAM_EXPONENT,
    SPLICE,
    SPLICE_TOKENS,
    SPLICE_WEIGHT,
)
from adaspec.predict.features import CANDIDATE
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
)


class Expectations(NamedTuple):
    """What is expected of every row's drafts, in the words of `policy.planner.memory.Memory`."""

    neural: Tensor
    """(rows, LONGEST_NEURAL + 1) P(the first j neural tokens are accepted)."""
    ngram: Tensor
    """(rows, LONGEST_NGRAM + 1) the same of n-gram tokens."""
    splice: Tensor
    """(rows, LONGEST_NEURAL + 1, LONGEST_SPLICE + 1) the same of tokens copied behind so many."""
    splice_expected: Tensor
    """(rows,) what a splice is worth before its match is known."""
    splice_value: Tensor
    """(rows, LONGEST_NEURAL + 1) what a splice behind so many neural tokens is worth."""
    splice_len: Tensor
    splice_tokens: Tensor
    agreed: Tensor
    """(rows,) how many leading drafted tokens are the n-gram candidate's."""
    least: Tensor
    """(rows, 2) the least log-probability and margin so far, float32."""


def predict_before_drafting(
    model: DeviceModel,
    knobs: list[float],
    rows: Rows,
    features: Tensor,
    factors: Tensor,
    price: Tensor,
) -> Expectations:
    """What is expected before drafting, by the features and the sources' recalibration factors."""
    predicted = model.before.predict(features)
    first = _recalibrated(predicted[:, NGRAM_FIRST], knobs[NGRAM_EXPONENT], factors[NGRAM])
    first = first.where(rows.match.length > 0, 0.0)
    ngram = model.ngram.survival(first, predicted[:, NGRAM_MORE])
    first = _recalibrated(predicted[:, NEURAL_FIRST], knobs[NEURAL_EXPONENT], factors[NEURAL])
    neural = model.neural.survival(first.where(rows.holds, 0.0), predicted[:, NEURAL_MORE])
    gain = predicted[:, SPLICE_GAIN].expm1().clamp(max=LONGEST_SPLICE)
    gain = gain * (knobs[SPLICE_WEIGHT] * factors[SPLICE]) - knobs[SPLICE_TOKENS] * price
    splice_expected = gain.where(gain > 0, 0.0)
    splice_value = neural * splice_expected[:, None]
    count = len(first)
    return Expectations(
        neural=neural,
        ngram=ngram,
        splice=neural.new_zeros(count, LONGEST_NEURAL + 1, LONGEST_SPLICE + 1),
        splice_expected=splice_expected,
        splice_value=splice_value,
        splice_len=torch.zeros_like(splice_value, dtype=torch.int64),
        splice_tokens=torch.zeros_like(splice_value),
        agreed=torch.zeros_like(rows.position),
        least=features.new_full((count, 2), torch.nan),
    )


def revise_by_draft(
    model: DeviceModel,
    knobs: list[float],
    rows: Rows,
    expected: Expectations,
    token: Tensor,
    confidence: Tensor,
    depth: int,
    behind: Match,
    factors: Tensor,
    price: Tensor,
    cap: int,
) -> Expectations:
    """What is expected once the token at this depth is drafted, and the match behind it known.

    Where the drafter gave no token (-1), nothing survives from here on.
    """
    agreed, least, predicted = _observe_draft(
        model, rows, expected, token, confidence, depth, behind
    )
    accepted = predicted[:, ACCEPTED_NEXT]
    neural, splice = expected.neural, expected.splice
    if depth > 1:
        neural = _with_earlier(neural, depth - 1, predicted[:, ACCEPTED_BEFORE])
        # A copy that says what this token says is had by keeping it; another one is right only
        # where this token is wrong.
        wrong = (1.0 - accepted).clamp(min=0.0)
        splice = torch.cat(
            (
                splice[:, : depth - 1],
                splice[:, depth - 1 : depth] * wrong[:, None, None],
                splice[:, depth:],
            ),
            1,
        )
    after = neural[:, depth - 1] * accepted.clamp(max=1.0)
    after = after.where((token >= 0) & (accepted > 0), 0.0)
    if depth == 1:
        after = (after * factors[NEURAL]).clamp(max=1.0)
    behind_draft = _in_proportion(neural[:, depth:], after, neural[:, depth])
    neural = torch.cat((neural[:, :depth], behind_draft), 1)
    neural = neural.where(rows.holds[:, None], expected.neural)

    first = _recalibrated(predicted[:, NGRAM_AFTER], knobs[NGRAM_EXPONENT], factors[NGRAM])
    ngram = _revise_ngram(expected.ngram, neural, agreed, depth, first)
    ngram = ngram.where((rows.holds & (rows.match.length > 0))[:, None], expected.ngram)
    revised = expected._replace(
        neural=neural,
        ngram=ngram,
        splice=splice,
        splice_value=neural * expected.splice_expected[:, None],
        agreed=agreed.where(rows.holds, expected.agreed),
        least=least.where(rows.holds[:, None], expected.least),
    )
    depths = torch.full_like(rows.position, depth)
    revised = predict_splices(
        model, rows, revised, depths, token, behind.follower, behind, factors, price, cap
    )
    return weigh_splices(revised, depth, price)


def _observe_draft(
    model: DeviceModel,
    rows: Rows,
    expected: Expectations,
    token: Tensor,
    confidence: Tensor,
    depth: int,
    behind: Match,
) -> tuple[Tensor, Tensor, Tensor]:
    """How many tokens agree, the least confidences, and the predictions by the drafted token."""
    agreed = expected.agreed
    if depth <= CANDIDATE:
        # Behind the candidate's end both may be -1, and that is no agreement.
        agrees = (token >= 0) & (rows.candidate[:, depth - 1] == token)
        agreed = torch.where(agrees & (agreed == depth - 1), depth, agreed)
    reached = expected.neural[:, depth - 1]
    features = observe_evidence(
        depth,
        (expected.neural[:, depth] / reached).where(reached > 0, 0.0),
        confidence,
        agreed,
        rows.match.length,
        expected.ngram[:, 1],
        reached,
        expected.least,
        behind,
    )
    confidence = confidence[:, :2]
    least = torch.where(confidence >= expected.least, expected.least, confidence)
    assert model.evidence is not None
    return agreed, least, model.evidence.predict(features)


def _with_earlier(survival: Tensor, depth: int, reached: Tensor) -> Tensor:
    """A later token also tells whether those up to `depth` were right: S(depth) is `reached`.

    Of what could have gone wrong up to there, nothing became likelier than the rest.
    """
    before, after = survival[:, depth], reached.clamp(0.0, 1.0)
    scale = ((1.0 - after) / (1.0 - before)).where(before < 1, 0.0)
    revised = torch.cat(
        (
            survival[:, :1],
            1.0 - (1.0 - survival[:, 1:depth]) * scale[:, None],
            after[:, None],
            survival[:, depth + 1 :] * (after / before)[:, None],
        ),
        1,
    )
    return revised.where((before > 0)[:, None], survival)


def _revise_ngram(
    ngram: Tensor, neural: Tensor, agreed: Tensor, depth: int, first: Tensor
) -> Tensor:
    """The n-gram curves scaled to their new first value, and brought in line with the draft."""
    scaled = _in_proportion(ngram[:, 1:], first, ngram[:, 1], IMPOSSIBLE).clamp(max=1.0)
    ngram = torch.cat((ngram[:, :1], scaled), 1)
    # Tokens that both propose are right together, and where they part one of them is wrong.
    raised = _raised_to(ngram, depth, neural[:, depth])
    parted = (neural[:, depth - 1] - neural[:, depth]).clamp(min=0.0)
    lowered = _lowered_to(ngram, depth, parted)
    ngram = lowered.where((agreed == depth - 1)[:, None], ngram)
    return raised.where((agreed == depth)[:, None], ngram)


def _raised_to(survival: Tensor, depth: int, least: Tensor) -> Tensor:
    """The curves raised to `least` at `depth`, what lies behind in proportion."""
    before = survival[:, depth]
    raised = torch.cat(
        (
            survival[:, :1],
            survival[:, 1 : depth + 1].maximum(least[:, None]),
            _in_proportion(survival[:, depth + 1 :], least, before),
        ),
        1,
    )
    return raised.where((least > before)[:, None], survival)


def _lowered_to(survival: Tensor, depth: int, most: Tensor) -> Tensor:
    """The curves lowered to `most` at `depth`, what lies behind in proportion."""
    before = survival[:, depth]
    lowered = torch.cat((survival[:, :depth], _in_proportion(survival[:, depth:], most, before)), 1)
    return lowered.where((most < before)[:, None], survival)


def _in_proportion(survival: Tensor, after: Tensor, before: Tensor, least: float = 0.0) -> Tensor:
    """The curves scaled by after / before; 0 where that is no more than `least`."""
    return (survival * after[:, None] / before[:, None]).where((before > least)[:, None], 0.0)


def predict_splices(
    model: DeviceModel,
    rows: Rows,
    expected: Expectations,
    depths: Tensor,
    before: Tensor,
    copied: Tensor,
    behind: Match,
    factors: Tensor,
    price: Tensor,
    cap: int,
) -> Expectations:
    """With the curves of splices behind `depths` neural tokens, of which `before` is the last.

    `behind` is the match there, `copied` the first token it would copy, -1 where it is not known.
    """
    reached = expected.neural.gather(1, depths[:, None])[:, 0]
    features = observe_splice(behind, depths, reached, rows, model.tables, before, copied)
    predicted = model.splice.predict(features)
    first = _recalibrated(predicted[:, SPLICE_FIRST], 1.0, factors[SPLICE])
    survival = model.spliced.survival(first, predicted[:, SPLICE_MORE])
    may_splice = rows.holds & (depths > 0) & (behind.length > 0) & (reached >= price)
    room = behind.available.minimum(cap - depths).where(may_splice, 0)
    survival = survival * (_counted(LONGEST_SPLICE + 1, survival) <= room[:, None])
    at_depth = _counted(LONGEST_NEURAL + 1, survival) == depths[:, None]
    return expected._replace(
        splice=torch.where(at_depth[:, :, None], survival[:, None], expected.splice)
    )


def weigh_splices(expected: Expectations, count: int, price: Tensor) -> Expectations:
    """With the best lengths of splices behind up to `count` neural tokens, and their worth."""
    splice = expected.splice[:, 1 : count + 1, 1:]
    reached = expected.neural[:, 1 : count + 1, None]
    taken = ((splice > 0) & (reached * splice >= price)).long().cumprod(2)

    def replaced(column: Tensor, part: Tensor) -> Tensor:
        return torch.cat((column[:, :1], part, column[:, count + 1 :]), 1)

    return expected._replace(
        splice_len=replaced(expected.splice_len, taken.sum(2)),
        splice_tokens=replaced(expected.splice_tokens, (splice * taken).sum(2)),
        splice_value=replaced(expected.splice_value, ((reached * splice - price) * taken).sum(2)),
    )


def _recalibrated(predicted: Tensor, exponent: float, factor: Tensor) -> Tensor:
    """Probabilities after their knob and their source's factor; 0 where one is none."""
    scaled = (predicted.clamp(max=1.0) ** exponent * factor).clamp(max=1.0)
    return scaled.where(predicted > 0, 0.0)


def _counted(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)
