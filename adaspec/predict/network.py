"""A network with two hidden layers: what it is, and its predictions for a batch of rows.

    x_c     = the feature of column c
    rise_c  = sum over k of (x_c - low_kc) * slope_kc, each part at least 0 and at most 1
    input_c = (rise_c - shift_c) * scale_c, 0 where x_c is missing (NaN);
              behind them a 1 for each feature of `flagged` that is missing, else a 0
    hidden  = silu(hidden_before @ weight + bias), twice
    output  = hidden @ weight + bias, and for probabilities its logistic function

A column measures how far a feature has risen through `INTERVALS`, which training lays where trees
split on it: what trees tell apart lies far apart in the input. A feature on which much depends has
several columns, one behind the other.

All sums are taken in one fixed order, without fused multiplication, and the logistic function is a
rational function, so every processor predicts the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.jit import inlined, vectorized
from adaspec.predict.arrays import Kinds, sound_arrays

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

NUMBER, PROBABILITY = 0, 1
"""What a head's output is, by `Network.link`."""
BLOCK = 32
"""The rows that go through all layers together, so that what they fill stays in the cache."""
INTERVALS = 4
"""How many a column has."""
MOST_WIDTH, MOST_COLUMNS = 512, 4096


class Network(NamedTuple):
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


class Scratch(NamedTuple):
    """The working memory of one thread, as long as the longest block."""

    gathered: Floats
    inputs: Floats
    hidden_1: Floats
    hidden_2: Floats
    output: Floats


def new_scratch(networks: Sequence[Network], rows: int = BLOCK) -> Scratch:
    """Working memory for blocks of so many rows of any of these networks."""
    each = [(len(n.source), *n.weight_1.shape, len(n.bias_2), len(n.link)) for n in networks]
    return Scratch(*(np.zeros((rows, size), np.float32) for size in np.max(each, axis=0)))


@inlined
def logistic(x: Any) -> Any:
    """1 / (1 + exp(-x)) to within 1e-7: a rational function of tanh(x / 2)."""
    half = min(max(np.float32(0.5) * x, np.float32(-7.9)), np.float32(7.9))
    square = half * half
    above = square * np.float32(-2.76076847742355e-16) + np.float32(2.00018790482477e-13)
    above = above * square + np.float32(-8.60467152213735e-11)
    above = above * square + np.float32(5.12229709037114e-08)
    above = above * square + np.float32(1.48572235717979e-05)
    above = above * square + np.float32(6.37261928875436e-04)
    above = above * square + np.float32(4.89352455891786e-03)
    below = square * np.float32(1.19825839466702e-06) + np.float32(1.18534705686654e-04)
    below = below * square + np.float32(2.26843463243900e-03)
    below = below * square + np.float32(4.89352518554385e-03)
    return np.float32(0.5) + np.float32(0.5) * (half * above / below)


@vectorized
def fill_inputs(
    network: Network, features: Floats, begin: int, count: int, scratch: Scratch
) -> None:
    """Fill `scratch.inputs` from so many rows of features."""
    source, low, slope = network.source, network.low, network.slope
    shift, scale, flagged = network.shift, network.scale, network.flagged
    columns, one, zero = source.shape[0], np.float32(1.0), np.float32(0.0)
    for row in range(count):
        x, out, given = features[begin + row], scratch.inputs[row], scratch.gathered[row]
        for c in range(columns):
            given[c], out[c] = x[source[c]], zero
        for k in range(low.shape[0]):
            for c in range(columns):
                out[c] += min(max((given[c] - low[k, c]) * slope[k, c], zero), one)
        for c in range(columns):
            out[c] = (out[c] - shift[c]) * scale[c] if given[c] == given[c] else zero
        for place in range(flagged.shape[0]):
            value = x[flagged[place]]
            out[columns + place] = zero if value == value else one


@vectorized
def multiply(x: Floats, weight: Floats, rows: int, out: Floats) -> None:
    """Add x @ weight to the first rows of `out`.

    Every sum is taken in the order of the inputs, whatever the rows beside it.
    """
    inputs, width = weight.shape
    by_four = inputs - inputs % 4
    for row in range(0, rows - 1, 2):
        a, b = out[row], out[row + 1]
        for k in range(0, by_four, 4):
            a0, a1, a2, a3 = x[row, k], x[row, k + 1], x[row, k + 2], x[row, k + 3]
            b0, b1, b2, b3 = x[row + 1, k], x[row + 1, k + 1], x[row + 1, k + 2], x[row + 1, k + 3]
            for j in range(width):
                w0, w1, w2, w3 = weight[k, j], weight[k + 1, j], weight[k + 2, j], weight[k + 3, j]
                a[j] = a[j] + a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
                b[j] = b[j] + b0 * w0 + b1 * w1 + b2 * w2 + b3 * w3
        for k in range(by_four, inputs):
            for j in range(width):
                a[j] += x[row, k] * weight[k, j]
                b[j] += x[row + 1, k] * weight[k, j]
    if rows % 2:
        last = rows - 1
        a = out[last]
        for k in range(0, by_four, 4):
            a0, a1, a2, a3 = x[last, k], x[last, k + 1], x[last, k + 2], x[last, k + 3]
            for j in range(width):
                w0, w1, w2, w3 = weight[k, j], weight[k + 1, j], weight[k + 2, j], weight[k + 3, j]
                a[j] = a[j] + a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
        for k in range(by_four, inputs):
            for j in range(width):
                a[j] += x[last, k] * weight[k, j]


@vectorized
def fill_layer(x: Floats, weight: Floats, bias: Floats, rows: int, out: Floats) -> None:
    """Fill the first rows of `out` with x @ weight + bias."""
    for row in range(rows):
        for j in range(bias.shape[0]):
            out[row, j] = bias[j]
    multiply(x, weight, rows, out)


@vectorized
def _apply_silu(rows: int, values: Floats) -> None:
    for row in range(rows):
        line = values[row]
        for j in range(line.shape[0]):
            line[j] = line[j] * logistic(line[j])


@vectorized
def predict_rows(
    network: Network, features: Floats, rows: int, scratch: Scratch, out: NDArray[np.float64]
) -> None:
    """Fill `out` with the predictions of all heads (columns) for the first rows of features."""
    heads = network.link.shape[0]
    for begin in range(0, rows, BLOCK):
        count = min(BLOCK, rows - begin)
        fill_inputs(network, features, begin, count, scratch)
        fill_layer(scratch.inputs, network.weight_1, network.bias_1, count, scratch.hidden_1)
        _apply_silu(count, scratch.hidden_1)
        fill_layer(scratch.hidden_1, network.weight_2, network.bias_2, count, scratch.hidden_2)
        _apply_silu(count, scratch.hidden_2)
        fill_layer(scratch.hidden_2, network.weight_3, network.bias_3, count, scratch.output)
        for row in range(count):
            for head in range(heads):
                value = scratch.output[row, head]
                is_probability = network.link[head] == PROBABILITY
                out[begin + row, head] = logistic(value) if is_probability else value


def predict(network: Network, features: Floats) -> NDArray[np.float64]:
    """The predictions of all heads (columns, in order) for every row of features."""
    values = np.ascontiguousarray(features, np.float32)
    out = np.empty((len(values), len(network.link)))
    predict_rows(network, values, len(values), new_scratch([network]), out)
    return out


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
    return Network(**zeros)._replace(bias_3=np.array(values, np.float32), link=link)


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
