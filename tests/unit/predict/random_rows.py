"""Rows, drafts and token tables that nobody saw: to drive every branch."""

import numpy as np

from adaspec.draft.matches import Matches
from adaspec.predict.features import CANDIDATE, TAIL, Known, Shown
from adaspec.predict.tables import level_keys, make_tables

TOKENS = 4


def random_table(rng):
    """A table of what some rows end with and copy."""
    tail, candidate = rng.integers(0, 4, (2, 30, 3)).astype(np.int32)
    keys = np.unique(level_keys(9, tail, candidate))
    means, depths = rng.random((2, len(keys))).astype(np.float32)
    counts = rng.integers(1, 9, len(keys)).astype(np.float32)
    return make_tables(keys, means, counts, depths, np.array((0.6, 0.4, 1.1, 1.3)), 9)


def random_matches(rng, *shape):
    there = rng.random(shape) < 0.7
    facts = rng.integers(1, 33, shape), rng.integers(1, 20, shape), *rng.integers(1, 9, (2, *shape))
    return Matches(*(np.where(there, each, 0).astype(np.int32) for each in (*facts, facts[0] * 3)))


def random_rows(rng, count):
    prompt, position = rng.integers(1, 40, (2, count)).astype(np.int32)
    match = random_matches(rng, count)
    is_copied = np.arange(CANDIDATE) < match.available[:, None]
    is_known = np.arange(TAIL)[::-1] < (prompt + position)[:, None]
    tail = np.where(is_known, rng.integers(0, 4, (count, TAIL)), -1).astype(np.int32)
    candidate = np.where(is_copied, rng.integers(0, 4, (count, CANDIDATE)), -1).astype(np.int32)
    match.start[:] = np.minimum(match.start, prompt + position - 1)
    return Known(prompt, position, match, tail, candidate)


def random_shown(rng, rows):
    shape = len(rows.position), TOKENS
    tokens = np.where(
        rng.random(shape) < 0.5, rows.candidate[:, :TOKENS], rng.integers(0, 4, shape)
    )
    tokens[rows.match.length == 0, 2:] = -1
    confidences = -rng.random((*shape, 3)).astype(np.float32)
    copied = rng.integers(-1, 4, shape).astype(np.int32)
    return Shown(tokens.astype(np.int32), confidences, random_matches(rng, *shape), copied)
