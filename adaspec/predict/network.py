"""What turns features into probabilities: networks, and the survival curves by their scores.

A network has two hidden layers:

    x_c     = the feature of column c
    rise_c  = sum over k of (x_c - low_kc) * slope_kc, each part at least 0 and at most 1
    input_c = (rise_c - shift_c) * scale_c, 0 where x_c is missing (NaN);
              behind them a 1 for each feature of `flagged` that is missing, else a 0
    hidden  = silu(hidden_before @ weight + bias), twice
    output  = hidden @ weight + bias, and for probabilities its logistic function

A column measures how far a feature has risen through `INTERVALS`, which training lays where trees
split on it: what trees tell apart lies far apart in the input. A feature on which much depends has
several columns, one behind the other.

Predictions are computed in double precision and rounded to single, so that processors which take
sums in another order predict the same bits, but for one number in a hundred million.

A source's curve is P(accepted >= 1), which a network predicts, times the shape beyond the first
token, which is an empirical curve of the positions with a second score in the same bin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError, nearest

Kinds = Mapping[str, tuple[type[np.number[Any]], tuple[str, ...]]]
"""The type and axes of each array."""


def sound_arrays(
    what: str, arrays: Mapping[str, NDArray[Any]], kinds: Kinds, **sizes: int
) -> dict[str, NDArray[Any]]:
    """The arrays, contiguous; a `PolicyError` unless they are finite and of these kinds.

    An axis is as long as `sizes` says, or else as in the first array that has it.
    """
    for name in [*arrays, *kinds]:
        if name not in kinds:
            raise PolicyError(f"{what}: unknown array '{name}'{nearest(name, kinds)}")
        if name not in arrays:
            raise PolicyError(f"{what}: array '{name}' is missing")
    for name, (kind, axes) in kinds.items():
        found = arrays[name]
        for axis, size in zip(axes, found.shape, strict=False):
            sizes.setdefault(axis, size)
        shape = tuple(sizes.get(axis, 0) for axis in axes)
        if found.dtype != kind or found.shape != shape:
            raise PolicyError(
                f"{what}: {name} is {found.dtype} of shape {found.shape}: it must be "
                f"{np.dtype(kind)} of shape {shape}"
            )
        if not np.isfinite(found).all():
            raise PolicyError(f"{what}: {name} holds a number that is not finite")
    return {name: np.ascontiguousarray(arrays[name]) for name in kinds}


Array = NDArray[np.float64]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

NUMBER, PROBABILITY = 0, 1
"""What a head's output is, by `Network.link`."""
INTERVALS = 4
"""How many a column has."""
MOST_WIDTH, MOST_COLUMNS = 512, 4096
_TOGETHER = 64
"""Rows that go through all layers together: of more, BLAS would share each small product between
threads, which takes up to fifty times as long on a busy machine."""


@dataclass(frozen=True, eq=False)
class Network:
    """The weights of one network; matrices have a row per input."""

    source: Ints
    """By column, its feature."""
    low: Floats
    """(INTERVALS, columns) where each interval begins."""
    slope: Floats
    """(INTERVALS, columns) 1 / its length."""
    shift: Floats
    scale: Floats
    flagged: Ints
    """The features that may be missing."""
    weight_1: Floats
    bias_1: Floats
    weight_2: Floats
    bias_2: Floats
    weight_3: Floats
    bias_3: Floats
    link: Ints
    """By head, whether its output is a NUMBER or a PROBABILITY."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def products(self) -> tuple[Array, ...]:
        """Weights and biases by layer, in double precision, the first with the columns' scaling.

        So its inputs are how far each column has risen, and which feature is missing: where that
        is missing, a column's input is 0 and not what no rise would be.
        """
        columns, features = len(self.source), 1 + max((*self.source, *self.flagged), default=-1)
        scaled = self.scale[:, None].astype(np.float64) * self.weight_1[:columns]
        missing = np.zeros((features, scaled.shape[1]))
        np.add.at(missing, self.source, self.shift[:, None] * scaled)
        np.add.at(missing, self.flagged, self.weight_1[columns:])
        behind = self.weight_2, self.bias_2, self.weight_3, self.bias_3
        bias = self.bias_1 - self.shift @ scaled
        return (
            np.concatenate((scaled, missing)),
            bias,
            *(each.astype(np.float64) for each in behind),
        )


def predict(network: Network, features: Floats) -> Floats:
    """The predictions of all heads (columns, in order) for every row of features."""
    if len(features) <= _TOGETHER:
        return _predict(network, features)
    parts = np.array_split(features, -(-len(features) // _TOGETHER))
    return np.concatenate([_predict(network, part) for part in parts])


def _predict(network: Network, features: Floats) -> Floats:
    weight_1, bias_1, weight_2, bias_2, weight_3, bias_3 = network.products
    missing = np.isnan(features[:, : len(weight_1) - len(network.source)])
    entered = np.concatenate((rises(network, features), missing), axis=1, dtype=np.float64)
    hidden = _silu(entered @ weight_1 + bias_1)
    hidden = _silu(hidden @ weight_2 + bias_2)
    output = hidden @ weight_3 + bias_3
    return np.where(network.link == PROBABILITY, _logistic(output), output).astype(np.float32)


def rises(network: Network, features: Floats) -> Floats:
    """(rows, columns) how far each column's feature has risen; 0 where the feature is missing."""
    risen = features.take(network.source, axis=1)[:, None] - network.low
    risen *= network.slope
    np.minimum(np.fmax(risen, 0, out=risen), 1, out=risen)
    return np.add.reduce(risen, axis=1)


def _silu(x: Array) -> Array:
    return x * _logistic(x)


def _logistic(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(np.minimum(-x, _LARGEST)))


_LARGEST = 500.0
"""The exponential function of more would be infinite."""


_KINDS: Kinds = {
    "source": (np.int32, ("columns",)),
    "low": (np.float32, ("intervals", "columns")),
    "slope": (np.float32, ("intervals", "columns")),
    "shift": (np.float32, ("columns",)),
    "scale": (np.float32, ("columns",)),
    "flagged": (np.int32, ("flagged",)),
    "weight_1": (np.float32, ("inputs", "width")),
    "bias_1": (np.float32, ("width",)),
    "weight_2": (np.float32, ("width", "width")),
    "bias_2": (np.float32, ("width",)),
    "weight_3": (np.float32, ("width", "heads")),
    "bias_3": (np.float32, ("heads",)),
    "link": (np.int32, ("heads",)),
}


def constant_network(values: Sequence[float]) -> Network:
    """A network whose heads always predict these values."""
    sizes = {"intervals": INTERVALS, "width": 1, "heads": len(values)}  # nothing of all else
    zeros: dict[str, Any] = {
        name: np.zeros([sizes.get(axis, 0) for axis in axes], kind)
        for name, (kind, axes) in _KINDS.items()
    }
    link = np.full(len(values), NUMBER, np.int32)
    return replace(Network(**zeros), bias_3=np.array(values, np.float32), link=link)


def network_from(
    name: str, arrays: Mapping[str, NDArray[Any]], features: int, heads: int
) -> Network:
    """The network in these arrays, by the names of its fields; a `PolicyError` if it is unsound."""
    what = f"network '{name}'"
    sound: Any = sound_arrays(what, arrays, _KINDS, intervals=INTERVALS, heads=heads)
    network = Network(**sound)
    columns, width = len(network.source), len(network.bias_1)
    if not 1 <= width <= MOST_WIDTH or columns > MOST_COLUMNS:
        raise PolicyError(
            f"{what}: {columns} columns and {width} hidden units: at most {MOST_COLUMNS} "
            f"and 1 to {MOST_WIDTH} can be used"
        )
    inputs = columns + len(network.flagged)
    if len(network.weight_1) != inputs:
        raise PolicyError(f"{what}: weight_1 has {len(network.weight_1)} rows for {inputs} inputs")
    for key, limit in (("source", features), ("flagged", features), ("link", 2)):
        numbers = getattr(network, key)
        if ((numbers < 0) | (numbers >= limit)).any():
            raise PolicyError(f"{what}: {key} holds a number outside 0 .. {limit - 1}")
    return network


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
