"""What is drafted: per row a source and a length, by its survival curves.

The curves follow from what is predicted of the row (`predict.model`), by how many drafted
tokens were seen, and are corrected by what came of drafts before. The row takes the source whose
tokens are worth most at the price that the last budget set, as far as that source goes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.budget import (
    ALL,
    GAINS,
    LAST,
    NEURAL,
    NGRAM,
    ONE_MORE,
    PRICE,
    SPLICE,
    Record,
)
from adaspec.predict.model import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE, Model

Array = NDArray[np.float64]
Longs = NDArray[np.int64]

ROW = np.dtype(
    [
        ("prediction", "i8"),  # the place of what is predicted of it
        ("context", "i8"),  # known tokens
        ("available", "i8"),  # tokens that could be copied
        ("holds_neural", "?"),
        # What is drafted, and then what is verified of it:
        ("neural", "i8"),  # tokens of the neural drafter
        ("copied", "i8"),  # tokens copied behind those
        ("gain", "f8", GAINS),  # what forwards bring: see `budget.LAST`
        ("accepted", "i8"),
        ("emitted", "i8"),
    ],
    align=True,
)
"""A running request in a step."""

SPLICE_WEIGHT = 1.4
"""The factor of what a splice is predicted to bring, before its match is known: predicted is the
mean of a logarithm, which is less than the logarithm of the mean."""
SPLICE_TOKENS = 3.0
"""How many tokens that splice is taken to verify."""


class Shapes(NamedTuple):
    """The shapes of a model's curves as (bins, longest + 1), by source."""

    ngram: Array
    neural: Array
    splice: Array


def shapes_of(model: Model) -> Shapes:
    """The model's shapes, 0 beyond what it knows."""
    ngram, neural, splice = (model.curves[name] for name in Shapes._fields)
    return Shapes(
        ngram.up_to(LONGEST_NGRAM), neural.up_to(LONGEST_NEURAL), splice.up_to(LONGEST_SPLICE)
    )


class Curves(NamedTuple):
    """A row's survival curves: P(the first j tokens of a draft are accepted)."""

    ngram: Array
    """(LONGEST_NGRAM + 1)"""
    neural: Array
    """(LONGEST_NEURAL + 1)"""
    splice: Array
    """(LONGEST_NEURAL + 1, LONGEST_SPLICE + 1) survival of what is copied behind so many neural
    tokens that are all accepted."""
    splice_value: Array
    """(LONGEST_NEURAL + 1) what a splice is worth there, its price paid."""
    splice_len: Longs
    """How many tokens of it are worth their price; 0 where the match there is not known."""


@compiled
def new_curves() -> Curves:
    """Room for a row's curves."""
    return Curves(
        np.zeros(LONGEST_NGRAM + 1),
        np.zeros(LONGEST_NEURAL + 1),
        np.zeros((LONGEST_NEURAL + 1, LONGEST_SPLICE + 1)),
        np.zeros(LONGEST_NEURAL + 1),
        np.zeros(LONGEST_NEURAL + 1, np.int64),
    )


@compiled
def fill_curves(
    row: Any, said: Any, shapes: Shapes, forwards: int, known: int, cap: int, curves: Curves
) -> None:
    """Fill a row's curves by what is predicted of it, and what so many forwards have shown.

    Where `known` is less than the forwards, the matches behind drafted tokens came to be known
    only once it was settled how many of those are verified.
    """
    shown = forwards if row.holds_neural else 0
    shape, first = shapes.ngram[said.ngram_shape], said.ngram_first
    if shown > 0:
        first = said.ngram_after[shown - 1]
    for j in range(1, LONGEST_NGRAM + 1):
        curves.ngram[j] = first * shape[j]

    shape, reached = shapes.neural[said.neural_shape], 1.0 if row.holds_neural else 0.0
    for k in range(1, LONGEST_NEURAL + 1):
        if k <= shown:
            reached *= said.accepted_next[k - 1]
        elif k == 1:
            reached *= said.neural_first
        else:
            reached *= shape[k] / shape[k - 1] if shape[k - 1] > 0 else 0.0
        curves.neural[k] = reached

    for k in range(1, LONGEST_NEURAL + 1):
        splice, room = curves.splice[k], 0
        if k <= shown:
            room = max(min(said.splice_available[k - 1], cap - k, LONGEST_SPLICE), 0)
            shape, first = shapes.splice[said.splice_shape[k - 1]], said.splice_first[k - 1]
            if k < min(shown, known):
                # A copy that says what the next token says is had by keeping that; another one is
                # right only where that is wrong.
                first *= 1.0 - said.accepted_next[k]
            for j in range(1, room + 1):
                splice[j] = first * shape[j]
        splice[room + 1 :] = 0.0


@compiled
def correct(curves: Curves, settings: Array) -> None:
    """Scale a row's curves by their sources' factors, but no further than to certainty."""
    _scale(curves.ngram, settings[NGRAM])
    _scale(curves.neural, settings[NEURAL])
    for k in range(1, LONGEST_NEURAL + 1):
        _scale(curves.splice[k], settings[SPLICE])


@compiled
def _scale(curve: Array, factor: float) -> None:
    if factor * curve[1] > 1.0:
        factor = 1.0 / curve[1]
    for j in range(1, curve.shape[0]):
        curve[j] *= factor


@compiled
def weigh_splices(curves: Curves, gain: float, known: int, price: float) -> None:
    """Fill in what splices are worth at a price, and how long the best ones are.

    The matches behind the first `known` neural tokens are known; elsewhere the `gain` stands for
    them, the tokens that a splice is expected to bring.
    """
    gain = max(gain * SPLICE_WEIGHT - SPLICE_TOKENS * price, 0.0)
    for k in range(1, LONGEST_NEURAL + 1):
        length, value = 0, curves.neural[k] * gain
        if k <= known:
            value = 0.0
            while length < LONGEST_SPLICE:
                reached = curves.neural[k] * curves.splice[k, length + 1]
                if reached <= 0 or reached < price:
                    break
                value += reached - price
                length += 1
        curves.splice_len[k], curves.splice_value[k] = length, value


@compiled
def best_copy(survival: Array, available: int, price: float, cap: int) -> tuple[int, float]:
    """The length up to which every token is worth its price, and what the draft is worth."""
    value, length = 0.0, 0
    for j in range(1, min(available, cap, LONGEST_NGRAM) + 1):
        if survival[j] <= 0 or survival[j] < price:
            break
        value += survival[j] - price
        length = j
    return length, value


@compiled
def best_neural(curves: Curves, forwards: int, price: float, cap: int) -> tuple[int, float]:
    """The neural length that is worth most with its splice, and its value; 0 where none pays."""
    length, best, value = 0, 0.0, 0.0
    for k in range(1, min(forwards, LONGEST_NEURAL) + 1):
        value += curves.neural[k] - price
        with_splice = value + curves.splice_value[k] if k < cap else value
        if with_splice > best:
            length, best = k, with_splice
    return length, best


@compiled
def best_draft(
    row: Any, curves: Curves, gain: float, forwards: int, known: int, price: float, cap: int
) -> None:
    """Take a row's best draft at a price, and note what forwards bring to it."""
    weigh_splices(curves, gain, known, price)
    copied, copied_value = best_copy(curves.ngram, row.available, price, cap)
    _, fewer = best_neural(curves, forwards - 1, price, cap)
    neural, value = best_neural(curves, forwards, price, cap)
    _, more = best_neural(curves, forwards + 1, price, cap)
    row.gain[ALL] = max(value - copied_value, 0.0)
    row.gain[LAST] = row.gain[ALL] - max(fewer - copied_value, 0.0)
    row.gain[ONE_MORE] = max(more - copied_value, 0.0) - row.gain[ALL]
    takes_neural = value > copied_value
    row.neural = neural if takes_neural else 0
    row.copied = curves.splice_len[neural] if takes_neural else copied


@compiled
def extend(row: Any, curves: Curves, cap: int) -> None:
    """Let a row's draft go as far as its source does."""
    survival = curves.splice[row.neural] if row.neural > 0 else curves.ngram
    most = min(row.available, cap, LONGEST_NGRAM)
    if row.neural > 0:
        most = min(cap - row.neural, LONGEST_SPLICE)
    row.copied = 0
    while row.copied < most and survival[row.copied + 1] > 0:
        row.copied += 1


@compiled
def draft_rows(
    rows: Record,
    predictions: Record,
    shapes: Shapes,
    settings: Array,
    forwards: int,
    cap: int,
    survival: Array,
    reads_drafts: bool,
) -> Longs:
    """Choose every row's draft after so many forwards, and fill in each token's survival.

    `survival` is (rows, tokens): P(a token of the draft and all before it are accepted). How long
    drafts are is returned.
    """
    curves, known = new_curves(), forwards if reads_drafts else 0
    lengths = np.empty(rows.shape[0], np.int64)
    for at in range(rows.shape[0]):
        row, said = rows[at], predictions[rows[at].prediction]
        fill_curves(row, said, shapes, forwards, known, cap, curves)
        correct(curves, settings)
        gain = said.splice_gain * settings[SPLICE]
        best_draft(row, curves, gain, forwards, known, settings[PRICE], cap)
        if row.neural + row.copied == 0:
            gains = row.gain.copy()
            best_draft(row, curves, gain, forwards, known, 0.0, cap)  # what it can
            row.gain[:] = gains
        extend(row, curves, cap)
        for j in range(row.neural):
            survival[at, j] = curves.neural[j + 1]
        for j in range(row.copied):
            if row.neural > 0:
                reached = curves.neural[row.neural] * curves.splice[row.neural, j + 1]
                survival[at, row.neural + j] = reached
            else:
                survival[at, j] = curves.ngram[j + 1]
        lengths[at] = row.neural + row.copied
    return lengths
