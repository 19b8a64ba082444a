"""Token tables: mean acceptance after certain tokens, looked up by salted hashes.

The keys form chains, in which each mean is shrunk towards that of a shorter key. For neural drafts
the keys are the last 1, 2 and 3 tokens, and the last token with the n-gram candidate's first (which
is usually the next token). For n-gram drafts they are the candidate's first token alone, behind the
last token, and with the candidate's second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.predict.network import Kinds, sound_arrays

AFTER_1, AFTER_2, AFTER_3, FIRST, AFTER_LAST, FIRST_TWO, AT_CANDIDATE, LEVELS = range(8)
"""The levels, in the order of the features, and how many there are."""
LEVEL_NAMES = (
    *("neural_after_1", "neural_after_2", "neural_after_3"),
    *("ngram_first", "ngram_after_last", "ngram_first_two", "neural_at_candidate"),
)
"""What features call them."""
OF_NEURAL, OF_NGRAM = 0, 1
SOURCE = np.array((OF_NEURAL, OF_NEURAL, OF_NEURAL, OF_NGRAM, OF_NGRAM, OF_NGRAM, OF_NEURAL))
"""The source whose acceptance each level describes."""
BASE = -1
PARENT = np.array((BASE, AFTER_1, AFTER_2, BASE, FIRST, FIRST, AFTER_1))
"""The level that each level's means are shrunk towards."""
MEAN, LOG_COUNT, DEPTH, VALUES_PER_LEVEL = range(4)
"""The values of each level, and how many there are."""
NONE = -1
"""No token."""

Keys = NDArray[np.uint64]
Tokens = NDArray[np.int32]
Floats = NDArray[np.float32]


class Tables(NamedTuple):
    """The entries of all levels."""

    keys: Keys
    """The keys' hashes, ascending."""
    entries: Floats
    """(keys, VALUES_PER_LEVEL) per key the mean, log(1 + positions seen), and the mean
    log(1 + accepted) over positions with at least one accepted token."""
    base: Floats
    """(source, 2) the mean acceptance over all tokens, and its depth."""
    salt: int


def mixed(h: Keys, value: NDArray[Any]) -> Keys:
    """Hashes that go on with values."""
    h = (h ^ (value.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))) * _FIRST_FACTOR
    h = (h ^ (h >> np.uint64(29))) * _SECOND_FACTOR
    return h ^ (h >> np.uint64(32))


_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def salted(salt: int) -> Keys:
    """The hashes that the keys of each level begin with."""
    return mixed(np.full(LEVELS, salt, np.uint64), np.arange(1, LEVELS + 1))


_T3, _T2, _T1, _C1, _C2, _NO = range(6)
_KEYED_BY = np.array(
    [
        (_T1, _T1, _T1, _C1, _C1, _C1, _C1),
        (_NO, _T2, _T2, _NO, _T1, _C2, _T1),
        (_NO, _NO, _T3, _NO, _NO, _NO, _NO),
    ]
)
"""By level, the tokens of its keys: some of the last three and of the candidate's first two."""
_NEEDED = np.array([_T1, _T2, _T3, _C1, _T1, _C2, _T1])
"""The last of them, without which there is no key; the first is needed as well."""


def level_keys(salt: int, tail: Tokens, candidate: Tokens) -> Keys:
    """(rows, LEVELS) the keys behind the last tokens and at the first of a candidate.

    `tail` is (rows, 3) with the last token last. A key is 0 where a token that it needs is NONE.
    """
    none = np.full((len(tail), 1), NONE, np.int32)
    tokens = np.concatenate((tail, candidate[:, :2], none), axis=1)
    h = salted(salt)
    for at in _KEYED_BY:
        h = mixed(h, tokens[:, at] + 2)
    known = (tokens[:, _KEYED_BY[0]] >= 0) & (tokens[:, _NEEDED] >= 0)
    return np.where(known, h | np.uint64(1), np.uint64(0))


def find(tables: Tables, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each key is, if it is there at all."""
    if not len(tables.keys):
        return np.zeros(keys.shape, np.int64), np.zeros(keys.shape, np.bool_)
    place = np.minimum(np.searchsorted(tables.keys, keys), len(tables.keys) - 1)
    return place, tables.keys[place] == keys


def values_of(tables: Tables, tail: Tokens, candidate: Tokens) -> Floats:
    """(rows, LEVELS, VALUES_PER_LEVEL) what the tables say at each row, as `level_keys` reads it.

    An unseen key gets its parent's values, and count 0.
    """
    out = np.zeros((len(tail), LEVELS, VALUES_PER_LEVEL), np.float32)
    out[:, :, ::2] = tables.base[SOURCE]
    if not len(tables.keys):
        return out
    place, found = find(tables, level_keys(tables.salt, tail, candidate))
    row, level = np.arange(len(tail))[:, None], np.arange(LEVELS)
    for _ in range(2):  # so far are parents of parents
        level = np.where(found[row, level] | (PARENT[level] == BASE), level, PARENT[level])
    seen, entries = found[row, level], tables.entries[place[row, level]]
    out[seen] = entries[seen]
    out[:, :, LOG_COUNT] *= found
    return out


def make_tables(
    keys: Keys, means: Floats, counts: Floats, depths: Floats, base: NDArray[Any], salt: int
) -> Tables:
    """Tables of these distinct keys; `base` is means by source, then depths by source."""
    order = np.argsort(keys)
    entries = np.stack((means, counts, depths), axis=1)[order]
    return Tables(keys[order], entries, np.float32(base).reshape(2, 2).T, salt)


def no_tables() -> Tables:
    """Tables without keys: what they say of any tokens is the same."""
    nothing = np.empty(0, np.float32)
    base = np.array((0.5, 0.5, 1.0, 1.0))
    return make_tables(np.empty(0, np.uint64), nothing, nothing, nothing, base, 1)


def to_arrays(tables: Tables) -> dict[str, NDArray[Any]]:
    """The arrays that `from_arrays` reads."""
    return {
        "keys": tables.keys,
        "means": tables.entries[:, MEAN],
        "counts": tables.entries[:, LOG_COUNT],
        "depths": tables.entries[:, DEPTH],
        "base": tables.base.T.ravel().astype(np.float64),
        "salt": np.array([tables.salt], np.uint64),
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
    return make_tables(keys, means, counts, depths, base, int(salt[0]))
