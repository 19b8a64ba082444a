"""Distillation: networks learn to predict what LightGBM's trees predict.

Trees learn better from few and noisy outcomes; a network is smaller, quicker, and the same on
every device. It is shown the features of the trees' examples and the trees' own predictions, which
carry no noise. Everything is summed in a fixed order, so the same seed gives the same network on
every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import vectorized
from adaspec.predict.network import (
    INTERVALS,
    PROBABILITY,
    Network,
    Scratch,
    fill_inputs,
    fill_layer,
    logistic,
    multiply,
    new_scratch,
)

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Array = NDArray[np.float64]

MOST_BATCH = 1024
STEPS_PER_PASS = 100
"""With few examples batches are smaller, so that a pass has about as many steps."""
_MEAN_DECAY, _SQUARE_DECAY, _TINY = 0.9, 0.99, 1e-8


@dataclass(frozen=True, slots=True)
class Distilling:
    """How a network is fitted."""

    width: int = 64
    passes: int = 12
    """Passes over the examples, and as many more as `least_steps` take."""
    least_steps: int = 6000
    """Steps of Adam, over all passes."""
    rate: float = 3e-3
    """Adam's step size at first; it falls to 0 in a straight line."""
    seed: int = 0


class _Backward(NamedTuple):
    """Working memory of a step: sums before their silu, slopes of the loss, transposed matrices."""

    sum_1: Floats
    sum_2: Floats
    output: Floats
    hidden_2: Floats
    hidden_1: Floats
    turned: Floats
    """As long as the largest matrix that is transposed."""


def distil(
    x: Floats,
    targets: Array,
    weight: Array,
    link: Ints,
    splits: Sequence[Array],
    settings: Distilling,
) -> Network:
    """The network that predicts the targets (a column per head) best, by weighted examples.

    Targets of probabilities are probabilities; the others are numbers. `splits` has, by feature,
    where what is learned changes with it, and how much there; it changes somewhere.
    """
    rng = np.random.default_rng([settings.seed, 0xD157])
    parameters, network = _begin(x, targets, weight, link, splits, settings.width, rng)
    batch = min(MOST_BATCH, max(32, len(x) // STEPS_PER_PASS), len(x))
    scratch, backward = _working_memory(network, batch)
    slopes = np.zeros_like(parameters)
    slope_views = _views(slopes, network)
    moments = np.zeros((2, len(parameters)), np.float32)
    scale = _loss_scale(targets, weight, link)
    x = np.ascontiguousarray(x, np.float32)
    wanted, weight = targets.astype(np.float32), (weight / weight.mean()).astype(np.float32)
    steps = len(x) // batch
    passes = max(settings.passes, -(-settings.least_steps // steps))
    for done in range(passes):
        _pass(
            network,
            slope_views,
            parameters,
            slopes,
            moments,
            x,
            wanted,
            weight,
            scale,
            rng.permutation(len(x)),
            batch,
            done * steps,
            passes * steps,
            settings.rate,
            scratch,
            backward,
        )
    return network


def _working_memory(network: Network, batch: int) -> tuple[Scratch, _Backward]:
    """For batches of so many examples."""
    (inputs, width), heads = network.weight_1.shape, len(network.link)
    hidden, output = (batch, width), (batch, heads)
    shapes = (hidden, hidden, output, hidden, hidden, (max(batch, width) * max(inputs, width),))
    backward = _Backward(*(np.zeros(shape, np.float32) for shape in shapes))
    return new_scratch([network], batch), backward


def _begin(
    x: Floats,
    targets: Array,
    weight: Array,
    link: Ints,
    splits: Sequence[Array],
    width: int,
    rng: np.random.Generator,
) -> tuple[Floats, Network]:
    """All weights in one row, and the network of random weights whose matrices lie in it."""
    source, low, slope = _columns(splits)
    missing = np.isnan(x)
    used = np.isin(np.arange(x.shape[1]), source)
    shift, scale = np.zeros(len(source)), np.zeros(len(source))
    for c, feature in enumerate(source):
        known = x[~missing[:, feature], feature]
        if len(known):
            rise = np.clip((known[:, None] - low[:, c]) * slope[:, c], 0, 1).sum(1)
            shift[c], spread = rise.mean(), rise.std()
            scale[c] = 1.0 / max(spread, _LEAST_SPREAD)
    flagged = np.flatnonzero(used & missing.any(0) & ~missing.all(0)).astype(np.int32)
    inputs, heads = len(source) + len(flagged), len(link)
    empty = Network(
        source,
        low,
        slope,
        shift.astype(np.float32),
        scale.astype(np.float32),
        flagged,
        np.zeros((inputs, width), np.float32),
        np.zeros(width, np.float32),
        np.zeros((width, width), np.float32),
        np.zeros(width, np.float32),
        np.zeros((width, heads), np.float32),
        np.zeros(heads, np.float32),
        link,
    )
    parameters = np.zeros(sum(getattr(empty, name).size for name in _FITTED), np.float32)
    network = _views(parameters, empty)
    for matrix in (network.weight_1, network.weight_2, network.weight_3):
        matrix[:] = rng.normal(0.0, 1.0 / np.sqrt(len(matrix)), matrix.shape)
    mean = np.average(targets, axis=0, weights=weight)
    odds = np.clip(mean, 1e-4, 1 - 1e-4)
    network.bias_3[:] = np.where(link == PROBABILITY, np.log(odds / (1 - odds)), mean)
    return parameters, network


def _columns(splits: Sequence[Array]) -> tuple[Ints, Floats, Floats]:
    """The columns' features, and where their intervals begin and how steep they are.

    Predictions change as much within each interval of a feature. Where they change so much at one
    value that it ends several intervals, those are a step there.
    """
    total = sum(each[:, 1].sum() for each in splits)
    source, lows, slopes = [], [], []
    for feature, each in enumerate(splits):
        if not each[:, 1].any():
            continue
        change = np.cumsum(each[:, 1])
        columns = max(1, round(_COLUMNS * len(splits) * change[-1] / total))
        marks = np.linspace(0, 1, columns * INTERVALS + 1)
        places = np.searchsorted(change / change[-1], marks - 1e-9)
        ends = each[np.minimum(places, len(each) - 1), 0]
        length = np.maximum(np.diff(ends), _STEP * np.maximum(np.abs(ends[1:]), 1.0))
        source += [feature] * columns
        lows.append((ends[1:] - length).reshape(columns, INTERVALS))
        slopes.append((1.0 / length).reshape(columns, INTERVALS))
    low, slope = (np.concatenate(each).T.astype(np.float32) for each in (lows, slopes))
    return np.array(source, np.int32), np.ascontiguousarray(low), np.ascontiguousarray(slope)


_COLUMNS = 2.4
"""About how many columns there are per feature, dealt by how much depends on each."""
_STEP = 1e-3
"""The length of a step, as a share of the value where it is."""
_LEAST_SPREAD = 0.02
"""The least standard deviation by which a column is scaled: one that rarely rises tells little."""
_FITTED = ("weight_1", "bias_1", "weight_2", "bias_2", "weight_3", "bias_3")


def _views(row: Floats, network: Network) -> Network:
    """The network with its fitted arrays in this row, one after another."""
    at, views = 0, {}
    for name in _FITTED:
        array = getattr(network, name)
        views[name] = row[at : at + array.size].reshape(array.shape)
        at += array.size
    return network._replace(**views)


def _loss_scale(targets: Array, weight: Array, link: Ints) -> Floats:
    """By head, what makes its loss weigh as much as that of a probability."""
    mean = np.average(targets, axis=0, weights=weight)
    variance = np.average((targets - mean) ** 2, axis=0, weights=weight)
    scale = np.where(link == PROBABILITY, 1.0, 0.25 / np.maximum(variance, 1e-6))
    return scale.astype(np.float32)


@vectorized
def _pass(
    network: Network,
    slope_views: Network,
    parameters: Floats,
    slopes: Floats,
    moments: Floats,
    x: Floats,
    wanted: Floats,
    weight: Floats,
    scale: Floats,
    order: NDArray[np.int64],
    batch: int,
    done: int,
    total: int,
    rate: float,
    scratch: Scratch,
    backward: _Backward,
) -> None:
    """One pass over the examples in this order, a step of Adam per batch."""
    features = np.empty((batch, x.shape[1]), np.float32)
    for step in range(order.shape[0] // batch):
        chosen = order[step * batch : (step + 1) * batch]
        for row in range(batch):
            features[row] = x[chosen[row]]
        _fill_slopes(
            network, slope_views, slopes, features, wanted, weight, scale, chosen, scratch, backward
        )
        number = done + step
        pace = np.float32(
            rate
            * (1.0 - number / total)
            * np.sqrt(1.0 - _SQUARE_DECAY ** (number + 1))
            / (1.0 - _MEAN_DECAY ** (number + 1))
        )
        _adam(parameters, slopes, moments[0], moments[1], pace)


@vectorized
def _adam(parameters: Floats, slopes: Floats, mean: Floats, square: Floats, pace: float) -> None:
    keep, new = np.float32(_MEAN_DECAY), np.float32(1.0 - _MEAN_DECAY)
    keep_square, new_square = np.float32(_SQUARE_DECAY), np.float32(1.0 - _SQUARE_DECAY)
    for i in range(parameters.shape[0]):
        mean[i] = mean[i] * keep + slopes[i] * new
        square[i] = square[i] * keep_square + slopes[i] * slopes[i] * new_square
        parameters[i] -= pace * mean[i] / (np.sqrt(square[i]) + np.float32(_TINY))


@vectorized
def _fill_slopes(
    network: Network,
    slope_views: Network,
    slopes: Floats,
    features: Floats,
    wanted: Floats,
    weight: Floats,
    scale: Floats,
    chosen: NDArray[np.int64],
    scratch: Scratch,
    backward: _Backward,
) -> None:
    """The slope of the batch's mean loss by every weight, by one way there and one back."""
    batch = features.shape[0]
    fill_inputs(network, features, 0, batch, scratch)
    fill_layer(scratch.inputs, network.weight_1, network.bias_1, batch, backward.sum_1)
    _silu_of(backward.sum_1, scratch.hidden_1)
    fill_layer(scratch.hidden_1, network.weight_2, network.bias_2, batch, backward.sum_2)
    _silu_of(backward.sum_2, scratch.hidden_2)
    fill_layer(scratch.hidden_2, network.weight_3, network.bias_3, batch, scratch.output)
    for row in range(batch):
        share = weight[chosen[row]] / np.float32(batch)
        for head in range(scale.shape[0]):
            value = scratch.output[row, head]
            said = logistic(value) if network.link[head] == PROBABILITY else value
            # Of cross-entropy and of half the squared error alike.
            error = said - wanted[chosen[row], head]
            backward.output[row, head] = error * share * scale[head]
    slopes[:] = 0.0
    _add_weights(scratch.hidden_2, backward.output, backward, slope_views.weight_3)
    _add_rows(backward.output, slope_views.bias_3)
    _go_back(backward.output, network.weight_3, backward, backward.sum_2, backward.hidden_2)
    _add_weights(scratch.hidden_1, backward.hidden_2, backward, slope_views.weight_2)
    _add_rows(backward.hidden_2, slope_views.bias_2)
    _go_back(backward.hidden_2, network.weight_2, backward, backward.sum_1, backward.hidden_1)
    _add_weights(scratch.inputs, backward.hidden_1, backward, slope_views.weight_1)
    _add_rows(backward.hidden_1, slope_views.bias_1)


@vectorized
def _silu_of(sums: Floats, out: Floats) -> None:
    for row in range(sums.shape[0]):
        line, filled = sums[row], out[row]
        for j in range(line.shape[0]):
            filled[j] = line[j] * logistic(line[j])


@vectorized
def _turn(matrix: Floats, out: Floats) -> Floats:
    """The transposed matrix, in the memory of `out`."""
    rows, columns = matrix.shape
    turned = out[: rows * columns].reshape(columns, rows)
    for row in range(rows):
        for column in range(columns):
            turned[column, row] = matrix[row, column]
    return turned


@vectorized
def _add_weights(x: Floats, slope: Floats, backward: _Backward, out: Floats) -> None:
    """Add the slope by a matrix: x transposed @ slope."""
    multiply(_turn(x, backward.turned), slope, x.shape[1], out)


@vectorized
def _add_rows(slope: Floats, out: Floats) -> None:
    for row in range(slope.shape[0]):
        for j in range(slope.shape[1]):
            out[j] += slope[row, j]


@vectorized
def _go_back(slope: Floats, weight: Floats, backward: _Backward, sums: Floats, out: Floats) -> None:
    """The slope by a layer's sums: what comes back through the matrix, through the silu."""
    out[:] = 0.0
    multiply(slope, _turn(weight, backward.turned), slope.shape[0], out)
    for row in range(sums.shape[0]):
        line, filled = sums[row], out[row]
        for j in range(line.shape[0]):
            share = logistic(line[j])
            filled[j] *= share * (np.float32(1.0) + line[j] * (np.float32(1.0) - share))
