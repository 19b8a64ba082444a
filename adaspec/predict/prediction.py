"""What a model predicts of rows, before drafting and by the tokens that are drafted.

A prediction is a fact of a text: neither load nor price enters, nor what came of other drafts. So
training and replays predict every position of a recording at once, and servers the rows of a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.predict.features import (
    EVIDENCE_FEATURES,
    NGRAM_EXPECTED,
    SURVIVAL_SO_FAR,
    Known,
    Shown,
    before_features,
    evidence_features,
    splice_features,
)
from adaspec.predict.model import (
    ACCEPTED_NEXT,
    LONGEST_NEURAL,
    LONGEST_SPLICE,
    NEURAL_FIRST,
    NEURAL_MORE,
    NGRAM_AFTER,
    NGRAM_FIRST,
    NGRAM_MORE,
    SPLICE_FIRST,
    SPLICE_GAIN,
    SPLICE_MORE,
    Model,
)
from adaspec.predict.network import predict
from adaspec.predict.tables import NONE

Floats = NDArray[np.float32]
Predictions = NDArray[Any]
"""An array of `PREDICTION`."""

PREDICTION = np.dtype(
    [
        ("ngram_first", "f4"),  # P(a copy's first token is right)
        ("ngram_shape", "i4"),  # the bin of the shape of its curve
        ("neural_first", "f4"),  # P(the drafter's first token is accepted)
        ("neural_shape", "i4"),
        ("splice_gain", "f4"),  # tokens that a splice brings whose match is not known
        # By drafted token:
        ("accepted_next", "f4", LONGEST_NEURAL),  # P(it is accepted, given those before it)
        ("ngram_after", "f4", LONGEST_NEURAL),  # P(a copy's first token is right), once it is seen
        ("splice_first", "f4", LONGEST_NEURAL),  # P(the first token copied behind it is right)
        ("splice_shape", "i4", LONGEST_NEURAL),
        ("splice_available", "i4", LONGEST_NEURAL),  # tokens that could be copied there
    ]
)
"""What is predicted of a row. A token that is not seen is accepted as was predicted before."""

NGRAM_EXPONENT = 1.6


def copy_chance(predicted: Floats) -> Floats:
    """P(a copy's first token is right): certain predictions are too hopeful."""
    return (predicted.astype(np.float64) ** NGRAM_EXPONENT).astype(np.float32)


def predict_before(model: Model, rows: Known) -> tuple[Predictions, Floats]:
    """What is predicted before drafting, and the features that it is predicted from."""
    x = before_features(model.tables, rows)
    said = predict(model.networks["before"], x)
    out = np.zeros(len(x), PREDICTION)
    chance = copy_chance(said[:, NGRAM_FIRST])
    out["ngram_first"] = np.where(rows.match.length > 0, chance, 0.0)
    out["ngram_shape"] = model.curves["ngram"].bins(said[:, NGRAM_MORE])
    out["neural_first"] = said[:, NEURAL_FIRST]
    out["neural_shape"] = model.curves["neural"].bins(said[:, NEURAL_MORE])
    out["splice_gain"] = np.clip(np.expm1(said[:, SPLICE_GAIN]), 0, LONGEST_SPLICE)
    out["ngram_after"] = out["ngram_first"][:, None]
    # The first token is accepted so often, and each one behind it as its curve falls.
    out["accepted_next"] = model.neural_ratios[out["neural_shape"]]
    out["accepted_next"][:, 0] = out["neural_first"]
    return out, x


def predict_behind(
    model: Model, out: Predictions, rows: Known, shown: Shown, reads_drafts: bool
) -> tuple[Floats, Floats]:
    """Fill in what is predicted by drafted tokens, for rows that were predicted before drafting.

    (rows, tokens, features) of the drafted tokens and of the splices behind them are returned.
    Where drafts are not read, splices alone are predicted, whatever they would copy.
    """
    count = shown.tokens.shape[1]
    accepted = out["accepted_next"][:, :count]
    evidence = np.empty((len(out), 0, len(EVIDENCE_FEATURES)), np.float32)
    if reads_drafts and count:
        evidence = evidence_features(rows, shown, accepted)
        reached, copied = np.ones(len(out)), out["ngram_first"]
        for depth in range(count):
            x = evidence[:, depth]
            x[:, SURVIVAL_SO_FAR], x[:, NGRAM_EXPECTED] = reached, copied
            said = predict(model.networks["evidence"], x)
            # What was not drafted is not accepted.
            was_drafted = shown.tokens[:, depth] >= 0
            accepted[:, depth] = np.where(was_drafted, said[:, ACCEPTED_NEXT], 0.0)
            chance = copy_chance(said[:, NGRAM_AFTER])
            copied = np.where(rows.match.length > 0, chance, np.float32(0.0))
            out["ngram_after"][:, depth] = copied
            reached = reached * accepted[:, depth]
    survival = np.multiply.accumulate(accepted, axis=1, dtype=np.float64)
    if not reads_drafts:
        shown = shown._replace(copied=np.full_like(shown.copied, NONE))
    spliced = splice_features(model.tables, rows, shown, survival)
    found = shown.match.length > 0
    said = predict(model.networks["splice"], spliced[found])
    out["splice_first"][:, :count][found] = said[:, SPLICE_FIRST]
    out["splice_shape"][:, :count][found] = model.curves["splice"].bins(said[:, SPLICE_MORE])
    out["splice_available"][:, :count] = np.where(found, shown.match.available, 0)
    return evidence, spliced
