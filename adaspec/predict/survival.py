"""Survival curves from scores: P(accepted >= j), non-increasing in j.

A source's curve is P(accepted >= 1), which a network predicts, times the shape beyond the first
token, which is an empirical curve of the positions with a second score in the same bin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.predict.arrays import Kinds, sound_arrays

Array = NDArray[np.float64]


class BinnedCurves(NamedTuple):
    """Shapes by score bin; column j of `shapes` is P(accepted >= j given accepted >= 1)."""

    edges: Array
    """The bins' edges, ascending; bin b has scores from edges[b - 1] on."""
    shapes: Array
    """The shapes as (bins, longest + 1); columns 0 and 1 are 1."""

    def bins(self, scores: NDArray[Any]) -> NDArray[np.int64]:
        """The bin of each score."""
        return np.searchsorted(self.edges, scores, side="right")

    def up_to(self, longest: int) -> Array:
        """The shapes as (bins, longest + 1), 0 beyond what is known."""
        shapes = np.zeros((len(self.shapes), longest + 1))
        known = min(self.shapes.shape[1], longest + 1)
        shapes[:, :known] = self.shapes[:, :known]
        return shapes


def survivals(
    curves: BinnedCurves, first: NDArray[Any], scores: NDArray[Any], longest: int
) -> Array:
    """(rows, longest) P(accepted >= j) for j = 1, 2, .."""
    shapes = curves.up_to(longest)[curves.bins(scores), 1:]
    return np.asarray(first)[:, None] * shapes


def curves_from(name: str, arrays: Mapping[str, NDArray[Any]]) -> BinnedCurves:
    """The curves in the arrays of these fields; unsound arrays raise a `PolicyError`."""
    what = f"survival curves '{name}'"
    kinds: Kinds = {"edges": (np.float64, ("edges",)), "shapes": (np.float64, ("bins", "lengths"))}
    curves = BinnedCurves(**sound_arrays(what, arrays, kinds))
    edges, shapes = curves
    if len(shapes) != len(edges) + 1 or shapes.shape[1] < 2:
        raise PolicyError(f"{what} have {len(edges)} edges and shapes of {shapes.shape}")
    rising = np.diff(shapes, axis=1) > 1e-12
    if (np.diff(edges) <= 0).any() or (shapes < 0).any() or rising.any():
        raise PolicyError(f"{what} are negative, not ascending or not non-increasing")
    if (shapes[:, :2] != 1).any():
        raise PolicyError(f"{what} do not begin at 1")
    return curves


def no_curves() -> BinnedCurves:
    """The curves of a source that never drafted, so that no token is accepted."""
    return BinnedCurves(np.empty(0), np.ones((1, 2)))
