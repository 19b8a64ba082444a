"""The table that a model is fitted on: what a policy sees at every position, by group of heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.predict.model import Model
from adaspec.replay import learned
from adaspec.replay.recording import Recording

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Array = NDArray[np.float64]
Members = NDArray[np.bool_]


class FeatureRows(NamedTuple):
    """Rows of features, each with the flat position that it is about."""

    at: Longs
    depth: Ints
    """Neural tokens drafted there, that a splice lies behind or of which the last is looked at."""
    x: Floats

    def chosen(self, rows: NDArray[np.bool_] | Longs) -> FeatureRows:
        """Some of the rows."""
        return FeatureRows(self.at[rows], self.depth[rows], self.x[rows])


Table = dict[str, FeatureRows]
"""Rows by the group of heads that reads them."""


def survey(recording: Recording, model: Model, members: Members, most: int) -> Table:
    """What a model reads at every position of the marked requests, with drafts of up to `most`."""
    requests = np.flatnonzero(members).astype(np.int32)
    tables = []
    for seen in learned.predict_all(recording, model, requests, most):
        before = FeatureRows(seen.at, np.zeros(len(seen.at), np.int32), seen.before)
        table = {"before": before, "splice": _by_depth(seen.at, seen.splice)}
        table["splice"] = table["splice"].chosen(seen.shown.match.length.ravel() > 0)
        if seen.evidence.shape[1]:
            table["evidence"] = _by_depth(seen.at, seen.evidence)
        tables.append(table)
    return pooled(tables)


def _by_depth(at: Longs, features: Floats) -> FeatureRows:
    """Rows of (positions, tokens, features)."""
    positions, most, count = features.shape
    depth = np.tile(np.arange(1, most + 1, dtype=np.int32), positions)
    return FeatureRows(np.repeat(at, most), depth, features.reshape(positions * most, count))


def pooled(tables: Sequence[Table]) -> Table:
    """All rows of the tables, which have the same groups, as one table."""
    columns = {group: zip(*(each[group] for each in tables), strict=True) for group in tables[0]}
    return {group: FeatureRows(*map(np.concatenate, each)) for group, each in columns.items()}


def thinned(rows: FeatureRows, most: int, rng: np.random.Generator) -> FeatureRows:
    """At most so many of the rows, drawn at random, in order."""
    if len(rows.at) <= most:
        return rows
    return rows.chosen(np.sort(rng.choice(len(rows.at), most, replace=False)))
