"""The features of a splice, which copies the match behind drafted neural tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.predict.tables import LEVELS, Tables, fill_copy_figures, level_keys, packed

Floats = NDArray[np.float32]

SPLICE = (
    "behind_length",
    "behind_agree",
    "behind_seen",
    "behind_available",
    "behind_tokens",
    "neural_survival",
    "match_length",
    "position",
    "copy_right",
    "copy_right_behind",
    "copy_right_behind_count",
)
"""The features of a splice, in order. None depends on the match's position, because traces without
drafted tokens could not tell it without using tokens to come. copy_*: the token tables' figures for
the first token to copy, NaN in such traces."""
COPY_AT = SPLICE.index("copy_right")


@compiled
def fill_splice(
    length: int,
    agree: int,
    seen: int,
    available: int,
    tokens: int,
    survival: float,
    match_length: float,
    position: int,
    tables: Tables,
    before: int,
    copied: int,
    keys: NDArray[np.uint64],
    out: Floats,
) -> None:
    """Fill one row of features; `before` is the last neural token."""
    out[0] = length
    out[1] = agree
    out[2] = seen
    out[3] = min(available, 32)
    out[4] = tokens
    out[5] = survival
    out[6] = match_length
    out[7] = position
    fill_copy_figures(tables, before, copied, keys, out[COPY_AT:])


def probe_splice() -> NDArray[np.float64]:
    """The features of a few made-up splices, for the fingerprint."""
    rng = np.random.Generator(np.random.PCG64(7))
    out = np.empty((8, len(SPLICE)), np.float32)
    keys = np.zeros(LEVELS, np.uint64)
    tables = _made_up_tables(keys)
    for row in range(8):
        numbers = [int(number) for number in rng.integers(1, 90, 5)]
        fill_splice(
            numbers[0],
            numbers[1],
            numbers[2],
            numbers[3],
            numbers[4],
            rng.random(),
            float(rng.integers(0, 9)),
            int(rng.integers(1, 90)),
            tables,
            row % 3 - 1,
            row % 4 - 1,
            keys,
            out[row],
        )
    return out.astype(np.float64)


def _made_up_tables(keys: NDArray[np.uint64]) -> Tables:
    """Tables with a few of the keys of tokens 0, 1 and 2."""
    known: dict[int, None] = {}
    for before in range(2):
        for token in range(2):
            level_keys(np.uint64(5), before, -1, -1, token, -1, keys)
            known |= {int(key): None for key in keys if key}
    values = np.linspace(0.1, 0.9, len(known)).astype(np.float32)
    return packed(np.array(list(known), np.uint64), values, 1 + values, values, (0.6, 0.4, 1, 1), 5)
