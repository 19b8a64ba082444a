"""Token tables: mean acceptance after certain tokens, looked up by salted hashes.

Chains of keys, each shrunk towards a shorter one: for neural drafts the last 1, 2 and 3 tokens, and
the last token with the n-gram candidate's first (what comes next, more often than not); for n-gram
drafts the candidate's first token, alone, behind the last token, and with the candidate's second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.jit import compiled, inlined

LEVELS = 7
NEURAL, NGRAM = 0, 1
SOURCE = (NEURAL, NEURAL, NEURAL, NGRAM, NGRAM, NGRAM, NEURAL)
"""Whose acceptance each level's key tells of."""
PARENT = (-1, 0, 1, -1, 3, 3, 0)
"""The level that each level's means are shrunk towards; -1: the base."""
TOLD = 3
"""Numbers per level: mean, log count, depth."""
MOST_BYTES = 20_000_000


class Tables(NamedTuple):
    """One open-addressing table for all levels."""

    keys: NDArray[np.uint64]
    """Hashes; 0 where a slot is free. The length is a power of two."""
    means: NDArray[np.float32]
    counts: NDArray[np.float32]
    """log(1 + positions seen)."""
    depths: NDArray[np.float32]
    """Mean log(1 + accepted) where at least one was."""
    base: NDArray[np.float64]
    """Mean acceptance of neural drafts and of n-gram drafts, whatever the tokens; then depths."""
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
    keys[6] = key_of(salt, 6, c1, t1, -1) if c1 >= 0 and t1 >= 0 else np.uint64(0)


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
    """Fill `out` with TOLD numbers per level; an unseen key has its parent's, and count 0."""
    level_keys(tables.salt[0], t1, t2, t3, c1, c2, keys)
    for level in range(LEVELS):
        slot = find(tables, keys[level]) if keys[level] != 0 else -1
        at = TOLD * level
        if slot >= 0:
            out[at] = tables.means[slot]
            out[at + 1] = tables.counts[slot]
            out[at + 2] = tables.depths[slot]
            continue
        parent = PARENT[level]
        if parent >= 0:
            out[at], out[at + 2] = out[TOLD * parent], out[TOLD * parent + 2]
        else:
            source = SOURCE[level]
            out[at], out[at + 2] = tables.base[source], tables.base[2 + source]
        out[at + 1] = 0.0


@compiled
def look_up_copy(
    tables: Tables, before: int, token: int, keys: NDArray[np.uint64], out: NDArray[np.float32]
) -> None:
    """What the tables say of a token copied behind `before`; NaN where the token is not known.

    How often copies that begin with it are right, alone and behind `before`, and the latter's log
    count.
    """
    if token < 0:
        out[:3] = np.nan
        return
    level_keys(tables.salt[0], before, -1, -1, token, -1, keys)
    slot = find(tables, keys[3])
    out[0] = tables.means[slot] if slot >= 0 else tables.base[NGRAM]
    slot = find(tables, keys[4]) if keys[4] != 0 else -1
    out[1] = tables.means[slot] if slot >= 0 else out[0]
    out[2] = tables.counts[slot] if slot >= 0 else 0.0


def packed(
    keys: NDArray[np.uint64],
    means: NDArray[np.float32],
    counts: NDArray[np.float32],
    depths: NDArray[np.float32],
    base: tuple[float, float, float, float],
    salt: int,
) -> Tables:
    """The table that holds these distinct keys, half full at most."""
    size = 1 << max(4, int(2 * len(keys) - 1).bit_length())
    tables = Tables(
        np.zeros(size, np.uint64),
        np.zeros(size, np.float32),
        np.zeros(size, np.float32),
        np.zeros(size, np.float32),
        np.array(base, np.float64),
        np.array([salt], np.uint64),
    )
    _fill(tables, keys, means, counts, depths)
    return tables


@compiled
def _fill(
    tables: Tables,
    keys: NDArray[np.uint64],
    means: NDArray[np.float32],
    counts: NDArray[np.float32],
    depths: NDArray[np.float32],
) -> None:
    mask = np.uint64(tables.keys.shape[0] - 1)
    for i in range(keys.shape[0]):
        at = (keys[i] >> np.uint64(1)) & mask
        while tables.keys[at] != 0:
            at = (at + np.uint64(1)) & mask
        tables.keys[at], tables.means[at] = keys[i], means[i]
        tables.counts[at], tables.depths[at] = counts[i], depths[i]


def to_arrays(tables: Tables) -> dict[str, NDArray[Any]]:
    """What `from_arrays` reads: the entries alone, in the order of their hashes."""
    held = np.flatnonzero(tables.keys)
    held = held[np.argsort(tables.keys[held])]
    return {
        "keys": tables.keys[held],
        "means": tables.means[held],
        "counts": tables.counts[held],
        "depths": tables.depths[held],
        "base": tables.base,
        "salt": tables.salt,
    }


_SHAPES = {
    "keys": np.uint64,
    "means": np.float32,
    "counts": np.float32,
    "depths": np.float32,
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
    depths, base, salt = arrays["depths"], arrays["base"], arrays["salt"]
    alike = len(keys) == len(means) == len(counts) == len(depths)
    if not alike or len(base) != 4 or len(salt) != 1:
        raise PolicyError("token tables: keys, means, counts and depths differ in length")
    if len(keys) and (keys[0] == 0 or (keys[1:] <= keys[:-1]).any()):
        raise PolicyError("token tables: keys are not distinct and ascending")
    for name in ("means", "counts", "depths", "base"):
        if not np.isfinite(arrays[name]).all():
            raise PolicyError(f"token tables: {name} holds a number that is not finite")
    for name, shares in (("means", means), ("base", base[:2])):
        if (shares < 0).any() or (shares > 1).any():
            raise PolicyError(f"token tables: {name} holds a number that is no share")
    for name, sizes in (("counts", counts), ("depths", depths), ("base", base)):
        if (sizes < 0).any():
            raise PolicyError(f"token tables: {name} holds a negative number")
    first, second, third, fourth = (float(number) for number in base)
    return packed(keys, means, counts, depths, (first, second, third, fourth), int(salt[0]))
