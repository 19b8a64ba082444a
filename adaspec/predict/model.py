"""A trained model: networks, curves and token tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.predict import tables as token_tables
from adaspec.predict.features import BEFORE_FEATURES, EVIDENCE_FEATURES, SPLICE_FEATURES
from adaspec.predict.network import Network, network_from
from adaspec.predict.survival import BinnedCurves, curves_from
from adaspec.predict.tables import Tables

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
