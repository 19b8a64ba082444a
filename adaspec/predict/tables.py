"""Token tables: mean acceptance after certain tokens, looked up by salted hashes.

Two chains of ever longer keys, each shrunk towards the one before: for neural drafts the last 1, 2
and 3 tokens; for n-gram drafts the candidate's first token, alone, behind the last token, and with
the candidate's second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.jit import compiled, inlined

LEVELS = 6
"""Three keys of the neural chain, then three of the n-gram chain."""
MOST_BYTES = 20_000_000


class Tables(NamedTuple):
    """One open-addressing table for all levels."""

    keys: NDArray[np.uint64]
    """Hashes; 0 where a slot is free. The length is a power of two."""
    means: NDArray[np.float32]
    counts: NDArray[np.float32]
    """log(1 + positions seen)."""
    base: NDArray[np.float64]
    """Mean acceptance of neural drafts and of n-gram drafts, whatever the tokens."""
    salt: NDArray[np.uint64]


@inlined
def _mixed(h: np.uint64, value: np.uint64) -> np.uint64:
    h ^= value + np.uint64(0x9E3779B97F4A7C15)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(32))


@compiled
def key_of(salt: np.uint64, level: int, first: int, second: int, third: int) -> np.uint64:
    """The salted hash of up to three tokens at a level; tokens that it does not use are -1."""
    h = _mixed(salt, np.uint64(level + 1))
    h = _mixed(h, np.uint64(first + 2))
    h = _mixed(h, np.uint64(second + 2))
    h = _mixed(h, np.uint64(third + 2))
    return h | np.uint64(1)


@compiled
def find(tables: Tables, key: np.uint64) -> int:
    """The slot that holds a key, -1 if none does."""
    mask = np.uint64(tables.keys.shape[0] - 1)
    # The lowest bit is always set: with it, half of the slots would be nobody's first choice.
    at = (key >> np.uint64(1)) & mask
    for _ in range(tables.keys.shape[0]):
        held = tables.keys[at]
        if held == key:
            # Not int: numba's would be unsigned, and float beside the -1.
            return np.int64(at)  # type: ignore[return-value]
        if held == 0:
            return -1
        at = (at + np.uint64(1)) & mask
    return -1


@compiled
def level_keys(
    salt: np.uint64, t1: int, t2: int, t3: int, c1: int, c2: int, keys: NDArray[np.uint64]
) -> None:
    """The keys of all levels at a position; 0 where a token that a key needs is unknown (-1)."""
    keys[0] = key_of(salt, 0, t1, -1, -1) if t1 >= 0 else np.uint64(0)
    keys[1] = key_of(salt, 1, t1, t2, -1) if t2 >= 0 else np.uint64(0)
    keys[2] = key_of(salt, 2, t1, t2, t3) if t3 >= 0 else np.uint64(0)
    keys[3] = key_of(salt, 3, c1, -1, -1) if c1 >= 0 else np.uint64(0)
    keys[4] = key_of(salt, 4, c1, t1, -1) if c1 >= 0 and t1 >= 0 else np.uint64(0)
    keys[5] = key_of(salt, 5, c1, c2, -1) if c1 >= 0 and c2 >= 0 else np.uint64(0)


PARENT = (-1, 0, 1, -1, 3, 3)
"""The level that each level's means are shrunk towards; -1: the base."""


@compiled
def look_up(
    tables: Tables,
    t1: int,
    t2: int,
    t3: int,
    c1: int,
    c2: int,
    keys: NDArray[np.uint64],
    out: NDArray[np.float32],
) -> None:
    """Fill `out` with (mean, log count) per level; an unseen key has its parent's mean, count 0."""
    level_keys(tables.salt[0], t1, t2, t3, c1, c2, keys)
    for level in range(LEVELS):
        slot = find(tables, keys[level]) if keys[level] != 0 else -1
        if slot >= 0:
            out[2 * level] = tables.means[slot]
            out[2 * level + 1] = tables.counts[slot]
            continue
        parent = PARENT[level]
        if parent >= 0:
            out[2 * level] = out[2 * parent]
        else:
            out[2 * level] = tables.base[0 if level < 3 else 1]
        out[2 * level + 1] = 0.0


def packed(
    keys: NDArray[np.uint64],
    means: NDArray[np.float32],
    counts: NDArray[np.float32],
    base: tuple[float, float],
    salt: int,
) -> Tables:
    """The table that holds these distinct keys, half full at most."""
    size = 1 << max(4, int(2 * len(keys) - 1).bit_length())
    tables = Tables(
        np.zeros(size, np.uint64),
        np.zeros(size, np.float32),
        np.zeros(size, np.float32),
        np.array(base, np.float64),
        np.array([salt], np.uint64),
    )
    _fill(tables, keys, means, counts)
    return tables


@compiled
def _fill(
    tables: Tables,
    keys: NDArray[np.uint64],
    means: NDArray[np.float32],
    counts: NDArray[np.float32],
) -> None:
    mask = np.uint64(tables.keys.shape[0] - 1)
    for i in range(keys.shape[0]):
        at = (keys[i] >> np.uint64(1)) & mask
        while tables.keys[at] != 0:
            at = (at + np.uint64(1)) & mask
        tables.keys[at], tables.means[at], tables.counts[at] = keys[i], means[i], counts[i]


def to_arrays(tables: Tables) -> dict[str, NDArray[Any]]:
    """What `from_arrays` reads: the entries alone, in the order of their hashes."""
    held = np.flatnonzero(tables.keys)
    held = held[np.argsort(tables.keys[held])]
    return {
        "keys": tables.keys[held],
        "means": tables.means[held],
        "counts": tables.counts[held],
        "base": tables.base,
        "salt": tables.salt,
    }


_SHAPES = {
    "keys": np.uint64,
    "means": np.float32,
    "counts": np.float32,
    "base": np.float64,
    "salt": np.uint64,
}


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> Tables:
    """The tables that `to_arrays` gave; anything unsound is refused."""
    if set(arrays) != set(_SHAPES):
        raise PolicyError(f"token tables hold {sorted(arrays)}, not {sorted(_SHAPES)}")
    for name, kind in _SHAPES.items():
        if arrays[name].dtype != kind or arrays[name].ndim != 1:
            raise PolicyError(f"token tables: {name} is no row of {np.dtype(kind).name}")
    keys, means, counts = arrays["keys"], arrays["means"], arrays["counts"]
    base, salt = arrays["base"], arrays["salt"]
    if not len(keys) == len(means) == len(counts) or len(base) != 2 or len(salt) != 1:
        raise PolicyError("token tables: keys, means and counts differ in length")
    if len(keys) and (keys[0] == 0 or (keys[1:] <= keys[:-1]).any()):
        raise PolicyError("token tables: keys are not distinct and ascending")
    for name in ("means", "counts", "base"):
        if not np.isfinite(arrays[name]).all():
            raise PolicyError(f"token tables: {name} holds a number that is not finite")
    for name in ("means", "base"):
        if (arrays[name] < 0).any() or (arrays[name] > 1).any():
            raise PolicyError(f"token tables: {name} holds a number that is no share")
    if (counts < 0).any():
        raise PolicyError("token tables: counts holds a negative number")
    return packed(keys, means, counts, (float(base[0]), float(base[1])), int(salt[0]))
