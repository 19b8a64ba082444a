"""Features are those of their version, by name and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from adaspec.predict import features, model, tables
from adaspec.predict.features import (
    CANDIDATE,
    FEATURES,
    FEATURES_VERSION,
    TAIL,
    RowFacts,
    fill_features,
)
from adaspec.predict.tables import LEVELS, Tables, packed


def random_table(rng: np.random.Generator) -> Tables:
    found = {}
    for level, used in enumerate((1, 2, 3, 1, 2, 2, 2)):
        for _ in range(12):
            tokens = [*rng.integers(0, 4, used).tolist(), *[-1] * (3 - used)]
            mean, depth = (float(np.float32(number)) for number in rng.random(2))
            found[(level, *tokens)] = (mean, float(rng.integers(1, 9)), depth)
    keys = np.array([tables.key_of(np.uint64(9), *key) for key in found], np.uint64)
    means, counts, depths = np.array(list(found.values()), np.float32).T.copy()
    return packed(keys, means, counts, depths, (0.6, 0.4, 1.1, 1.3), 9)


def random_rows(rng: np.random.Generator, count: int) -> RowFacts:
    prompt, position = rng.integers(1, 40, (2, count))
    there = rng.random(count) < 0.7
    start = rng.integers(1, prompt + position)
    available = np.where(there, prompt + position - start, 0)
    is_copied = np.arange(CANDIDATE) < available[:, None]
    is_known = np.arange(TAIL)[::-1] < (prompt + position)[:, None]
    ints = {
        "slots": np.arange(count),
        "prompt_tokens": prompt,
        "position": position,
        "length": there * rng.integers(1, 33, count),
        "start": np.where(there, start, -1),
        "votes": rng.integers(0, 9, count),
        "occurrences": rng.integers(1, 9, count),
        "available": available,
        "tail": np.where(is_known, rng.integers(0, 4, (count, TAIL)), -1),
        "candidate": np.where(is_copied, rng.integers(0, 4, (count, CANDIDATE)), -1),
    }
    facts = {name: np.ascontiguousarray(value, np.int32) for name, value in ints.items()}
    return RowFacts(holds_neural=rng.random(count) < 0.5, **facts)


GOLDEN = Path(__file__).with_name("features.json")


def test_names_and_values_are_those_of_this_version(tmp_path: Path) -> None:
    found = json.dumps({"version": FEATURES_VERSION, **on_a_probe()}, indent=1) + "\n"
    (tmp_path / GOLDEN.name).write_text(found)
    assert found == GOLDEN.read_text(), (
        "features have changed: raise FEATURES_VERSION in adaspec/predict/features.py, and copy "
        f"{tmp_path / GOLDEN.name} over {GOLDEN}"
    )


def on_a_probe() -> dict[str, Any]:
    """The heads, and every feature's values for a few made-up rows, splices and drafted tokens."""
    rng = np.random.Generator(np.random.PCG64(5))
    table = random_table(rng)
    keys = np.zeros(LEVELS, np.uint64)
    rows = random_rows(rng, 8)
    before = np.empty((8, FEATURES), np.float32)
    fill_features(rows, table, keys, before)
    splice = np.empty((8, len(features.SPLICE_FEATURES)), np.float32)
    evidence = np.empty((8, len(features.EVIDENCE_FEATURES)), np.float32)
    for row in range(8):
        length, votes, occurrences, available, position = map(int, rng.integers(1, 90, 5))
        survival, *sure = rng.random(4)
        known = (row % 4 - 1, row % 3 - 1)
        match = (length, votes, occurrences)
        features.fill_splice(
            *match, available, row, survival, 3.0 * row, position, table, *known, keys, splice[row]
        )
        depth = 1 + row % 4
        least = np.full(2, np.nan if depth == 1 else -survival, np.float32)
        features.fill_evidence(
            depth,
            survival,
            -np.array(sure, np.float32),
            row % (depth + 1),
            3.0 * (row % 3),
            0.25,
            0.5,
            least,
            *(length * (row % 2), votes, occurrences),
            evidence[row],
        )
    values = {"before": before, "splice": splice, "evidence": evidence}
    return {
        group: {
            "heads": " ".join(model.HEADS[group]),
            # Texts of four digits are the same on every machine.
            **{
                name: " ".join(f"{value:.4g}" for value in column.tolist())
                for name, column in zip(model.FEATURE_NAMES[group], values[group].T, strict=True)
            },
        }
        for group in values
    }
