"""A trained model (networks, curves and token tables), and what it predicts of rows.

It predicts before drafting, and by the tokens that are drafted. A prediction is a fact of a text:
neither load nor price enters, nor what came of other drafts. So training and replays predict every
position of a recording at once, and servers the rows of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.predict import tables as token_tables
from adaspec.predict.features import (
    BEFORE_FEATURES,
    EVIDENCE_FEATURES,
    NGRAM_EXPECTED,
    SPLICE_FEATURES,
    SURVIVAL_SO_FAR,
    Known,
    Shown,
    before_features,
    evidence_features,
    splice_features,
)
from adaspec.predict.network import BinnedCurves, Network, curves_from, network_from, predict
from adaspec.predict.tables import NONE, Tables

NGRAM_FIRST, NGRAM_MORE, NEURAL_FIRST, NEURAL_MORE, SPLICE_GAIN = range(5)
BEFORE_HEADS = ("ngram_first", "ngram_more", "neural_first", "neural_more", "splice_gain")
SPLICE_FIRST, SPLICE_MORE = range(2)
SPLICE_HEADS = ("splice_first", "splice_more")
ACCEPTED_NEXT, NGRAM_AFTER = range(2)
EVIDENCE_HEADS = ("accepted_next", "ngram_after")

HEADS = {"before": BEFORE_HEADS, "splice": SPLICE_HEADS, "evidence": EVIDENCE_HEADS}
FEATURE_NAMES = {
    "before": BEFORE_FEATURES,
    "splice": SPLICE_FEATURES,
    "evidence": EVIDENCE_FEATURES,
}
PROBABILITIES = frozenset(("ngram_first", "neural_first", "splice_first", *EVIDENCE_HEADS))
"""The heads that predict a probability; the others predict the log of 1 + a number of tokens."""
LONGEST = {"ngram": 48, "neural": 8, "splice": 16}
"""The tokens of the longest draft of each source, and of the longest splice."""
LONGEST_NGRAM, LONGEST_NEURAL, LONGEST_SPLICE = LONGEST.values()
CURVES = tuple(LONGEST)


@dataclass(frozen=True)
class Model:
    """All that was learned; `networks` has `evidence` only if it was trained on drafted tokens."""

    networks: Mapping[str, Network]
    curves: Mapping[str, BinnedCurves]
    tables: Tables

    def __post_init__(self) -> None:
        """Refuse a model that lacks a part."""
        if not {"before", "splice"} <= set(self.networks) or set(self.curves) != set(CURVES):
            raise PolicyError("a model lacks a network or curves")

    @property
    def reads_evidence(self) -> bool:
        """Whether the model uses drafted tokens and confidences."""
        return "evidence" in self.networks

    @cached_property
    def neural_ratios(self) -> NDArray[np.float32]:
        """(bins, tokens) by how much a curve of the drafter falls at each token but the first."""
        shapes = self.curves["neural"].up_to(LONGEST_NEURAL)
        before = np.maximum(shapes[:, :-1], np.finfo(np.float64).tiny)
        return (shapes[:, 1:] / before).astype(np.float32)

    def network_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of `network.npz`; the version of features says what columns are."""
        stored: dict[str, NDArray[Any]] = {}
        for name, network in sorted(self.networks.items()):
            stored |= {f"{name}.{key}": array for key, array in network.arrays().items()}
        for name, curves in sorted(self.curves.items()):
            stored |= {f"curve-{name}.{key}": array for key, array in curves._asdict().items()}
        return stored

    def table_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of `tables.npz`."""
        return token_tables.to_arrays(self.tables)


def model_from(learned: Mapping[str, NDArray[Any]], tables: Mapping[str, NDArray[Any]]) -> Model:
    """The model in `network_arrays` and `table_arrays`; unsound arrays raise a `PolicyError`."""
    groups: dict[str, dict[str, NDArray[Any]]] = {}
    for key, value in learned.items():
        group, _, name = key.partition(".")
        groups.setdefault(group, {})[name] = value
    networks = {
        group: network_from(group, arrays, len(FEATURE_NAMES[group]), len(HEADS[group]))
        for group, arrays in groups.items()
        if group in HEADS
    }
    curves = {
        name: curves_from(name, groups[f"curve-{name}"])
        for name in CURVES
        if f"curve-{name}" in groups
    }
    unknown = set(groups) - set(networks) - {f"curve-{name}" for name in curves}
    if unknown:
        raise PolicyError(f"a model holds no '{min(unknown)}'")
    return Model(networks, curves, token_tables.from_arrays(tables))


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
