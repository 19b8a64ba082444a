"""Token tables against a naive computation over plain dicts."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "replay"))

from random_tapes import random_requests, tape_of

from adaspec.predict.tables import find, key_of, to_arrays
from adaspec.replay.tape import Tape
from adaspec.train.token_tables import TableMaker

PARENTS = {1: 0, 2: 1, 4: 3, 5: 3}


def shorter(level: int, key: tuple[int, ...]) -> tuple[int, ...]:
    return key[:2] if level == 2 else key[:1]


def naive(tape: Tape, members: np.ndarray) -> tuple[list[float], dict[tuple, tuple[float, float]]]:
    """Base rates; per (level, key) the shrunk mean and the positions seen, rare keys left out."""
    seen: dict[tuple, list[tuple[int, bool]]] = defaultdict(list)
    base: list[list[bool]] = [[], []]
    for r, request in enumerate(tape.requests):
        if not members[r]:
            continue
        text = [*request.prompt_tokens.tolist(), *request.output_tokens.tolist()]
        prompt = len(request.prompt_tokens)
        for p in range(1, len(request.output_tokens)):
            at, i = prompt + p, int(tape.columns.offset[r]) + p
            if tape.neural_cap:
                hit = bool(tape.columns.neural[i] >= 1)
                base[0].append(hit)
                for level in range(3):
                    if at > level:
                        key = tuple(text[at - 1 - back] for back in range(level + 1))
                        seen[(level, key)].append((r, hit))
            if tape.columns.match[i]:
                start = int(tape.matches.start[i])
                hit = text[start] == text[at]
                base[1].append(hit)
                keys = {3: (text[start],), 4: (text[start], text[at - 1])}
                if start + 1 < at:
                    keys[5] = (text[start], text[start + 1])
                for level, key in keys.items():
                    seen[(level, key)].append((r, hit))
    bases = [float(np.mean(hits)) if hits else 0.0 for hits in base]
    found: dict[tuple, tuple[float, float]] = {}
    for (level, key), hits in sorted(seen.items()):
        if len({r for r, _ in hits}) < 3:
            continue
        parent = bases[level // 3]
        if level in PARENTS:
            parent = found[(PARENTS[level], shorter(level, key))][0]
        mean = (sum(hit for _, hit in hits) + 5 * parent) / (len(hits) + 5)
        found[(level, key)] = (mean, len(hits))
    return bases, found


@pytest.mark.parametrize("seed", range(12))
def test_tables_are_what_a_naive_count_over_their_requests_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tape = tape_of(random_requests(seed, 14, tokens=False), 0 if seed % 4 == 0 else 5)
    members = rng.random(len(tape)) < 0.7
    tables = TableMaker(tape, seed).make(members)
    bases, found = naive(tape, members)
    np.testing.assert_allclose(tables.base, bases)
    assert len(to_arrays(tables)["keys"]) == len(found)
    for (level, key), (mean, count) in found.items():
        hashed = key_of(tables.salt[0], level, *key, *[-1] * (3 - len(key)))
        slot = find(tables, np.uint64(hashed))
        assert slot >= 0
        assert tables.means[slot] == pytest.approx(mean, rel=1e-5)
        assert tables.counts[slot] == pytest.approx(np.log1p(count), rel=1e-5)


def test_another_seed_salts_the_keys_otherwise() -> None:
    tape = tape_of(random_requests(1, 8, tokens=False))
    everyone = np.ones(len(tape), np.bool_)
    one, other = (to_arrays(TableMaker(tape, seed).make(everyone))["keys"] for seed in (0, 1))
    assert not set(one.tolist()) & set(other.tolist())
