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
from adaspec.jit import compiled

Array = NDArray[np.float64]


class Curves(NamedTuple):
    """Shapes by score bin; column j of `shapes` is P(accepted >= j given accepted >= 1)."""

    edges: Array
    """The bins' edges, ascending; bin b has scores from edges[b - 1] on."""
    shapes: Array
    """The shapes as (bins, longest + 1); columns 0 and 1 are 1."""


@compiled
def fill_survival(first: float, score: float, curves: Curves, out: Array) -> None:
    """Fill `out` with P(accepted >= j) for j = 0, 1, ..; 0 beyond the longest known length."""
    shape = curves.shapes[np.searchsorted(curves.edges, score, side="right")]
    out[0] = 1.0
    for j in range(1, out.shape[0]):
        out[j] = first * shape[j] if j < shape.shape[0] else 0.0


@compiled
def fill_survivals(first: Array, scores: Array, curves: Curves, out: Array) -> None:
    """Run `fill_survival` for many positions, with a row of `out` for each."""
    for row in range(out.shape[0]):
        fill_survival(first[row], scores[row], curves, out[row])


def curves_from(name: str, arrays: Mapping[str, NDArray[Any]]) -> Curves:
    """The curves in the arrays of these fields; unsound arrays raise a `PolicyError`."""
    if set(arrays) != set(Curves._fields):
        raise PolicyError(f"survival curves '{name}' lack an array, or hold something else")
    edges, shapes = arrays["edges"], arrays["shapes"]
    if (
        edges.dtype != np.float64
        or shapes.dtype != np.float64
        or edges.ndim != 1
        or shapes.ndim != 2
        or shapes.shape[0] != len(edges) + 1
        or shapes.shape[1] < 2
    ):
        raise PolicyError(f"survival curves '{name}' have odd shapes or types")
    sound = np.isfinite(edges).all() and (np.diff(edges) > 0).all() and np.isfinite(shapes).all()
    if not sound or (shapes < 0).any() or (np.diff(shapes, axis=1) > 1e-12).any():
        raise PolicyError(f"survival curves '{name}' are not finite, ascending or non-increasing")
    if (shapes[:, :2] != 1).any():
        raise PolicyError(f"survival curves '{name}' do not begin at 1")
    return Curves(np.ascontiguousarray(edges), np.ascontiguousarray(shapes))
