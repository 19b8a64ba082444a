"""A hash of all features: a model is made for one fingerprint, and another build refuses it."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from adaspec.predict import features, model
from adaspec.predict.tables import LEVELS, Tables, level_keys, packed

Floats = NDArray[np.float32]


def feature_fingerprint() -> str:
    """A hash of the names and order of this build's features and heads, and of values on a probe.

    Values are rounded so that the hash is the same on every machine, and a rewrite that changes no
    value keeps it.
    """
    heads = (f"{group}:{head}" for group, names in model.HEADS.items() for head in names)
    digest = hashlib.sha256()
    for name in (
        *features.PRE_DRAFT_FEATURES,
        *features.SPLICE_FEATURES,
        *features.EVIDENCE_FEATURES,
        *heads,
    ):
        digest.update(name.encode() + b"\0")
    for values in (_probe_before(), _probe_splice(), _probe_evidence()):
        # Adding zero turns -0.0 into 0.0.
        settled = np.round(np.nan_to_num(values, nan=-7.0), 4) + 0.0
        digest.update(settled.astype("<f8").tobytes())
    return "v" + digest.hexdigest()[:8]


def _probe_before() -> NDArray[np.float64]:
    """The features of a few made-up rows."""
    count = 6
    rng = np.random.Generator(np.random.PCG64(5))
    salt = np.uint64(3)
    keys = np.empty(LEVELS, np.uint64)
    level_keys(salt, 4, 3, 2, 5, 4, keys)
    means = np.linspace(0.1, 0.9, LEVELS).astype(np.float32)
    tables = packed(keys, means, 1 + means, 2 * means, (0.6, 0.4, 1.1, 1.3), 3)
    found = []
    out = np.empty((count, features.FEATURES), np.float32)
    for _ in range(4):
        length = rng.integers(0, 5, count).astype(np.int32)
        rows = features.RowFacts(
            slots=np.arange(count, dtype=np.int32),
            prompt_tokens=np.full(count, 20, np.int32),
            position=rng.integers(1, 30, count).astype(np.int32),
            holds_neural=np.ones(count, np.bool_),
            length=length,
            start=rng.integers(1, 20, count).astype(np.int32),
            votes=np.minimum(length, 3).astype(np.int32),
            occurrences=np.minimum(length + 1, 8).astype(np.int32),
            available=rng.integers(1, 90, count).astype(np.int32),
            tail=rng.integers(2, 6, (count, features.TAIL)).astype(np.int32),
            candidate=rng.integers(2, 6, (count, features.CANDIDATE)).astype(np.int32),
        )
        features.fill_features(rows, rows.slots, tables, keys, out)
        found.append(np.nan_to_num(out.astype(np.float64), nan=-7.0).ravel())
    return np.concatenate(found)


def _probe_splice() -> NDArray[np.float64]:
    """The features of a few made-up splices."""
    rng = np.random.Generator(np.random.PCG64(7))
    out = np.empty((8, len(features.SPLICE_FEATURES)), np.float32)
    keys = np.zeros(LEVELS, np.uint64)
    tables = _made_up_tables(keys)
    for row in range(8):
        numbers = [int(number) for number in rng.integers(1, 90, 5)]
        features.fill_splice(
            *numbers,
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


def _probe_evidence() -> NDArray[np.float64]:
    """The features of a few made-up tokens."""
    rng = np.random.Generator(np.random.PCG64(6))
    out = np.empty((12, len(features.EVIDENCE_FEATURES)), np.float32)
    for row in range(12):
        depth, match_length = 1 + row % 4, 3 * (row % 3)
        least = np.full(2, np.nan, np.float32) if depth == 1 else _made_up(rng, 2)
        features.fill_evidence(
            depth,
            rng.random(),
            _made_up(rng, 3),
            int(rng.integers(0, depth + 1)),
            float(match_length),
            rng.random(),
            rng.random(),
            least,
            int(rng.integers(0, 3)),
            int(rng.integers(1, 9)),
            int(rng.integers(1, 9)),
            out[row],
        )
    return out.astype(np.float64)


def _made_up(rng: np.random.Generator, count: int) -> Floats:
    return -rng.random(count).astype(np.float32)
