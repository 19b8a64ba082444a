"""Features are those of their version, by name and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from adaspec.draft.match import Matches
from adaspec.predict import features, model
from adaspec.predict.features import CANDIDATE, FEATURES_VERSION, TAIL, Known, Shown
from adaspec.predict.tables import Tables, level_keys, make_tables

TOKENS = 4


def random_table(rng: np.random.Generator) -> Tables:
    """A table of what some rows end with and copy."""
    tail, candidate = rng.integers(0, 4, (2, 30, 3)).astype(np.int32)
    keys = np.unique(level_keys(9, tail, candidate))
    means, depths = rng.random((2, len(keys))).astype(np.float32)
    counts = rng.integers(1, 9, len(keys)).astype(np.float32)
    return make_tables(keys, means, counts, depths, np.array((0.6, 0.4, 1.1, 1.3)), 9)


def random_matches(rng: np.random.Generator, *shape: int) -> Matches:
    there = rng.random(shape) < 0.7
    facts = rng.integers(1, 33, shape), rng.integers(1, 20, shape), *rng.integers(1, 9, (2, *shape))
    return Matches(*(np.where(there, each, 0).astype(np.int32) for each in (*facts, facts[0] * 3)))


def random_rows(rng: np.random.Generator, count: int) -> Known:
    prompt, position = rng.integers(1, 40, (2, count)).astype(np.int32)
    match = random_matches(rng, count)
    is_copied = np.arange(CANDIDATE) < match.available[:, None]
    is_known = np.arange(TAIL)[::-1] < (prompt + position)[:, None]
    tail = np.where(is_known, rng.integers(0, 4, (count, TAIL)), -1).astype(np.int32)
    candidate = np.where(is_copied, rng.integers(0, 4, (count, CANDIDATE)), -1).astype(np.int32)
    match.start[:] = np.minimum(match.start, prompt + position - 1)
    return Known(prompt, position, match, tail, candidate)


def random_shown(rng: np.random.Generator, rows: Known) -> Shown:
    shape = len(rows.position), TOKENS
    tokens = np.where(
        rng.random(shape) < 0.5, rows.candidate[:, :TOKENS], rng.integers(0, 4, shape)
    )
    tokens[rows.match.length == 0, 2:] = -1
    confidences = -rng.random((*shape, 3)).astype(np.float32)
    copied = rng.integers(-1, 4, shape).astype(np.int32)
    return Shown(tokens.astype(np.int32), confidences, random_matches(rng, *shape), copied)


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
    table, rows = random_table(rng), random_rows(rng, 8)
    shown = random_shown(rng, rows)
    said = rng.random((3, *shown.tokens.shape)).astype(np.float32)
    evidence = features.evidence_features(rows, shown, said[0])
    # What is filled in by who predicts.
    evidence[..., [features.NGRAM_EXPECTED, features.SURVIVAL_SO_FAR]] = 0.0
    splice = features.splice_features(table, rows, shown, said[1])
    values = {"before": features.before_features(table, rows)}
    for group, each in (("splice", splice), ("evidence", evidence)):
        values[group] = each.reshape(-1, each.shape[-1])[::3]
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
