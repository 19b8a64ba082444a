"""Token tables: mean acceptance after certain tokens, looked up by salted hashes.

The keys form chains, in which each mean is shrunk towards that of a shorter key. For neural drafts
the keys are the last 1, 2 and 3 tokens, and the last token with the n-gram candidate's first (which
is usually the next token). For n-gram drafts they are the candidate's first token alone, behind the
last token, and with the candidate's second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.jit import compiled, inlined
from adaspec.predict.arrays import Kinds, sound_arrays

AFTER_1, AFTER_2, AFTER_3, FIRST, AFTER_LAST, FIRST_TWO, AT_CANDIDATE, LEVELS = range(8)
"""The levels, in the order of the features, and how many there are."""
LEVEL_NAMES = (
    *("neural_after_1", "neural_after_2", "neural_after_3"),
    *("ngram_first", "ngram_after_last", "ngram_first_two", "neural_at_candidate"),
)
"""What features call them."""
OF_NEURAL, OF_NGRAM = 0, 1
SOURCE = (OF_NEURAL, OF_NEURAL, OF_NEURAL, OF_NGRAM, OF_NGRAM, OF_NGRAM, OF_NEURAL)
"""The source whose acceptance each level describes."""
BASE = -1
PARENT = (BASE, AFTER_1, AFTER_2, BASE, FIRST, FIRST, AFTER_1)
"""The level that each level's means are shrunk towards."""
MEAN, LOG_COUNT, DEPTH, VALUES_PER_LEVEL = range(4)
"""The values of each level, and how many there are."""


class Tables(NamedTuple):
    """One open-addressing table for all levels."""

    keys: NDArray[np.uint64]
    """The keys' hashes, 0 in free slots; the length is a power of two."""
    means: NDArray[np.float32]
    counts: NDArray[np.float32]
    """Per key, log(1 + positions seen)."""
    depths: NDArray[np.float32]
    """Per key, the mean log(1 + accepted) over positions with at least one accepted token."""
    base: NDArray[np.float64]
    """The mean acceptance over all tokens, of neural and of n-gram drafts; then their depths."""
    salt: NDArray[np.uint64]


@inlined
def mixed(h: np.uint64, value: np.uint64) -> np.uint64:
    """A hash that goes on with a value."""
    h ^= value + np.uint64(0x9E3779B97F4A7C15)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(32))


@compiled
def key_of(salt: np.uint64, level: int, first: int, second: int, third: int) -> np.uint64:
    """The salted hash of up to three tokens at a level; tokens that it does not use are -1."""
    h = mixed(salt, np.uint64(level + 1))
    h = mixed(h, np.uint64(first + 2))
    h = mixed(h, np.uint64(second + 2))
    h = mixed(h, np.uint64(third + 2))
    return h | np.uint64(1)


@compiled
def find(tables: Tables, key: np.uint64) -> int:
    """The slot of a key, or -1 if the table lacks it."""
    mask = np.uint64(tables.keys.shape[0] - 1)
    # The lowest bit is always set; with it, half of the slots would never be the first choice.
    slot = (key >> np.uint64(1)) & mask
    for _ in range(tables.keys.shape[0]):
        stored_key = tables.keys[slot]
        if stored_key == key:
            # This is not int(), because numba's would be unsigned, and a float beside the -1.
            return np.int64(slot)  # type: ignore[return-value]
        if stored_key == 0:
            return -1
        slot = (slot + np.uint64(1)) & mask
    return -1


@compiled
def level_keys(
    salt: np.uint64, t1: int, t2: int, t3: int, c1: int, c2: int, keys: NDArray[np.uint64]
) -> None:
    """Fill in all levels' keys at a position; 0 if a token that the key needs is unknown (-1)."""
    keys[:] = 0
    if t1 >= 0:
        keys[AFTER_1] = key_of(salt, AFTER_1, t1, -1, -1)
    if t2 >= 0:
        keys[AFTER_2] = key_of(salt, AFTER_2, t1, t2, -1)
    if t3 >= 0:
        keys[AFTER_3] = key_of(salt, AFTER_3, t1, t2, t3)
    if c1 >= 0:
        keys[FIRST] = key_of(salt, FIRST, c1, -1, -1)
    if c1 >= 0 and t1 >= 0:
        keys[AFTER_LAST] = key_of(salt, AFTER_LAST, c1, t1, -1)
        keys[AT_CANDIDATE] = key_of(salt, AT_CANDIDATE, c1, t1, -1)
    if c1 >= 0 and c2 >= 0:
        keys[FIRST_TWO] = key_of(salt, FIRST_TWO, c1, c2, -1)


@compiled
def fill_values(
    tables: Tables,
    t1: int,
    t2: int,
    t3: int,
    c1: int,
    c2: int,
    keys: NDArray[np.uint64],
    out: NDArray[np.float32],
) -> None:
    """Fill `out` with every level's values; an unseen key gets its parent's, and count 0."""
    level_keys(tables.salt[0], t1, t2, t3, c1, c2, keys)
    for level in range(LEVELS):
        slot = find(tables, keys[level]) if keys[level] != 0 else -1
        at, parent = VALUES_PER_LEVEL * level, PARENT[level]
        if slot >= 0:
            out[at + MEAN] = tables.means[slot]
            out[at + LOG_COUNT] = tables.counts[slot]
            out[at + DEPTH] = tables.depths[slot]
            continue
        if parent == BASE:
            source = SOURCE[level]
            out[at + MEAN], out[at + DEPTH] = tables.base[source], tables.base[2 + source]
        else:
            inherited = VALUES_PER_LEVEL * parent
            out[at + MEAN], out[at + DEPTH] = out[inherited + MEAN], out[inherited + DEPTH]
        out[at + LOG_COUNT] = 0.0


@compiled
def fill_copy_values(
    tables: Tables, before: int, token: int, keys: NDArray[np.uint64], out: NDArray[np.float32]
) -> None:
    """Fill in the tables' values for a token copied behind `before`; NaN if it is not known.

    They are how often copies that begin with the token are right, in general and behind `before`,
    and the log count of the latter.
    """
    if token < 0:
        out[:3] = np.nan
        return
    level_keys(tables.salt[0], before, -1, -1, token, -1, keys)
    slot = find(tables, keys[FIRST])
    out[0] = tables.means[slot] if slot >= 0 else tables.base[OF_NGRAM]
    slot = find(tables, keys[AFTER_LAST]) if keys[AFTER_LAST] != 0 else -1
    out[1] = tables.means[slot] if slot >= 0 else out[0]
    out[2] = tables.counts[slot] if slot >= 0 else 0.0


def packed(
    keys: NDArray[np.uint64],
    means: NDArray[np.float32],
    counts: NDArray[np.float32],
    depths: NDArray[np.float32],
    base: Sequence[float] | NDArray[np.float64],
    salt: int,
) -> Tables:
    """A table with these distinct keys, at most half full."""
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


def no_tables() -> Tables:
    """A table without keys: what it says of any tokens is the same."""
    nothing = np.empty(0, np.float32)
    return packed(np.empty(0, np.uint64), nothing, nothing, nothing, (0.5, 0.5, 1.0, 1.0), 1)


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
        slot = (keys[i] >> np.uint64(1)) & mask
        while tables.keys[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        tables.keys[slot], tables.means[slot] = keys[i], means[i]
        tables.counts[slot], tables.depths[slot] = counts[i], depths[i]


def to_arrays(tables: Tables) -> dict[str, NDArray[Any]]:
    """The arrays that `from_arrays` reads: the entries without free slots, ordered by hash."""
    used_slots = np.flatnonzero(tables.keys)
    used_slots = used_slots[np.argsort(tables.keys[used_slots])]
    return {
        "keys": tables.keys[used_slots],
        "means": tables.means[used_slots],
        "counts": tables.counts[used_slots],
        "depths": tables.depths[used_slots],
        "base": tables.base,
        "salt": tables.salt,
    }


_KINDS: Kinds = {
    "keys": (np.uint64, ("entries",)),
    "means": (np.float32, ("entries",)),
    "counts": (np.float32, ("entries",)),
    "depths": (np.float32, ("entries",)),
    "base": (np.float64, ("bases",)),
    "salt": (np.uint64, ("salts",)),
}


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> Tables:
    """The tables in `to_arrays`; unsound arrays raise a `PolicyError`."""
    sound = sound_arrays("token tables", arrays, _KINDS, bases=4, salts=1)
    keys, means, counts, depths, base, salt = sound.values()
    if len(keys) and (keys[0] == 0 or (keys[1:] <= keys[:-1]).any()):
        raise PolicyError("token tables: keys are not distinct and ascending")
    for name in ("means", "counts", "depths", "base"):
        if (sound[name] < 0).any():
            raise PolicyError(f"token tables: {name} holds a number below 0")
    if (means > 1).any() or (base[:2] > 1).any():
        raise PolicyError("token tables: means or base hold a number that is no share")
    return packed(keys, means, counts, depths, base, int(salt[0]))
