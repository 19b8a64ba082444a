"""Features and histories against their definitions, restated in plain Python."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from adaspec.predict import evidence, features, model, splicing, tables
from adaspec.predict.features import (
    BEFORE,
    CANDIDATE,
    FEATURES,
    HISTORY,
    TAIL,
    RowFacts,
    forget,
    observe,
    remember,
)
from adaspec.predict.tables import LEVELS, Tables, packed


@dataclass
class Past:
    """What a request's earlier steps said."""

    ngram_hit: float = 0.5
    neural_hit: float = 0.6
    neural_mean: float = 1.3
    copied: int = 0
    goes_on_at: int = -1
    emitted: int = 0
    neural_hits: int = 0
    neural_drafts: int = 0
    neural_surprise: float = 0.0
    ngram_surprise: float = 0.0
    whole: float = math.nan
    copy: bool = False
    splice_hit: float = 0.3
    neural_said: float = 0.0
    ngram_said: float = 0.0
    table: dict[tuple[int, ...], float] = field(default_factory=dict)

    def take_in(
        self,
        start: int,
        candidate: list[int],
        emitted: list[int],
        drafted: int,
        copied: int,
        accepted: int,
    ) -> None:
        """`candidate` is empty where there was no match."""
        self.emitted = len(emitted)
        if candidate:
            hit = candidate[0] == emitted[0]
            self.ngram_hit += 0.15 * (hit - self.ngram_hit)
            self.ngram_surprise += 0.08 * (hit - self.ngram_said - self.ngram_surprise)
        known = min(len(emitted), CANDIDATE)
        if candidate and candidate[:known] == emitted[:known]:
            earlier = self.copied if start == self.goes_on_at else 0
            self.copied, self.goes_on_at = earlier + len(emitted), start + len(emitted)
        else:
            self.copied, self.goes_on_at = 0, -1
        self.whole = float(accepted >= drafted + copied) if drafted + copied else math.nan
        self.copy = drafted == 0 and copied > 0
        if drafted:
            taken = min(drafted, accepted)
            self.neural_hits += taken > 0
            self.neural_drafts += 1
            self.neural_surprise += 0.08 * ((taken > 0) - self.neural_said - self.neural_surprise)
            if taken == drafted and copied:
                self.splice_hit += 0.15 * ((accepted > drafted) - self.splice_hit)
            self.neural_hit += 0.15 * ((taken > 0) - self.neural_hit)
            if taken < drafted or taken > self.neural_mean:
                self.neural_mean += 0.15 * (taken - self.neural_mean)


def expected_features(past: Past, rows: RowFacts, row: int, table: dict[int, tuple]) -> list[float]:
    length, start = int(rows.length[row]), int(rows.start[row])
    prompt, position = int(rows.prompt_tokens[row]), int(rows.position[row])
    nan = math.nan
    match: list[float] = [0.0] + [nan] * 7
    if length:
        goes_on = start == past.goes_on_at
        match = [
            length,
            rows.agree[row],
            rows.seen[row],
            math.log(prompt + position - start),
            min(int(rows.available[row]), 64),
            start < prompt,
            goes_on,
            past.copied if goes_on else 0,
        ]
    t3, t2, t1 = rows.tail[row].tolist()
    c1, c2 = rows.candidate[row, :2].tolist()
    keys = [(0, t1, -1, -1), (1, t1, t2, -1), (2, t1, t2, t3)]
    keys += [(3, c1, -1, -1), (4, c1, t1, -1), (5, c1, c2, -1), (6, c1, t1, -1)]
    needs = [(t1,), (t1, t2), (t1, t2, t3), (c1,), (c1, t1), (c1, c2), (c1, t1)]
    told: list[tuple[float, float, float]] = []
    for level, (key, need) in enumerate(zip(keys, needs, strict=True)):
        above = {1: 0, 2: 1, 4: 3, 5: 3, 6: 0}.get(level)
        mean, depth = BASES[level] if above is None else (told[above][0], told[above][2])
        unseen = (mean, 0.0, depth)
        told.append(table.get(key, unseen) if min(need) >= 0 else unseen)
    past.neural_said, past.ngram_said = told[2][0], told[4][0]
    return [
        *match,
        past.ngram_hit,
        past.neural_hit,
        past.neural_mean,
        (past.neural_hits + 3.0) / (past.neural_drafts + 5.0),
        past.neural_surprise,
        past.ngram_surprise,
        past.emitted,
        past.whole,
        past.copy,
        position,
        math.log(prompt + position),
        prompt,
        *itertools.chain(*told),
    ]


BASES = {0: (0.6, 1.1), 3: (0.4, 1.3)}


def random_table(rng: np.random.Generator) -> tuple[Tables, dict]:
    found = {}
    for level, used in enumerate((1, 2, 3, 1, 2, 2, 2)):
        for _ in range(12):
            tokens = [*rng.integers(0, 4, used).tolist(), *[-1] * (3 - used)]
            mean, depth = (float(np.float32(number)) for number in rng.random(2))
            found[(level, *tokens)] = (mean, float(rng.integers(1, 9)), depth)
    keys = np.array([tables.key_of(np.uint64(9), *key) for key in found], np.uint64)
    means, counts, depths = np.array(list(found.values()), np.float32).T.copy()
    return packed(keys, means, counts, depths, (0.6, 0.4, 1.1, 1.3), 9), found


def random_rows(rng: np.random.Generator, slots: np.ndarray, past: list[Past]) -> RowFacts:
    count = len(slots)
    prompt, position = rng.integers(2, 40, count), rng.integers(1, 40, count)
    there = rng.random(count) < 0.7
    start = rng.integers(1, prompt + position)
    for row, slot in enumerate(slots):
        if rng.random() < 0.5 and 0 < past[slot].goes_on_at < prompt[row] + position[row]:
            start[row] = past[slot].goes_on_at
    available = np.where(there, prompt + position - start, 0)
    candidate = rng.integers(0, 4, (count, CANDIDATE))
    candidate[np.arange(CANDIDATE) >= available[:, None]] = -1
    tail = rng.integers(0, 4, (count, TAIL))
    tail[np.arange(TAIL)[::-1] >= (prompt + position)[:, None]] = -1
    ints = {
        "slots": slots,
        "prompt_tokens": prompt,
        "position": position,
        "length": np.where(there, rng.integers(1, 33, count), 0),
        "start": np.where(there, start, -1),
        "agree": rng.integers(0, 9, count),
        "seen": rng.integers(1, 9, count),
        "available": available,
        "tail": tail,
        "candidate": candidate,
    }
    return RowFacts(
        holds_neural=rng.random(count) < 0.5,
        **{name: np.ascontiguousarray(value, np.int32) for name, value in ints.items()},
    )


def test_features_and_histories_are_what_their_definitions_say() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        packed_table, table = random_table(rng)
        slots = 5
        history = np.full((slots, HISTORY), 77.0)
        past = [Past() for _ in range(slots)]
        for slot in range(slots):
            forget(history, slot)
        keys = np.zeros(LEVELS, np.uint64)
        for _ in range(25):
            running = rng.permutation(slots)[: rng.integers(1, slots + 1)].astype(np.int32)
            rows = random_rows(rng, running, past)
            out = np.full((slots, FEATURES), 99, np.float32)
            observe(
                rows, np.arange(len(rows.slots), dtype=np.int32), history, packed_table, keys, out
            )
            for row, slot in enumerate(running):
                said = expected_features(past[slot], rows, row, table)
                np.testing.assert_allclose(
                    out[row], said, rtol=2e-6, atol=2e-7, err_msg=str(BEFORE)
                )
            counts = rng.integers(1, 12, len(running)).astype(np.int32)
            emitted = np.full((len(running), int(counts.max())), -1, np.int32)
            drafted = rng.integers(0, 4, len(running)).astype(np.int32)
            copied_len = rng.integers(0, 3, len(running)).astype(np.int32)
            for row, count in enumerate(counts):
                copied = rows.candidate[row][: rng.integers(0, CANDIDATE + 1)]
                emitted[row, :count] = rng.integers(0, 4, count)
                good = copied[copied >= 0][:count]
                emitted[row, : len(good)] = good
            remember(rows, history, emitted, counts, drafted + copied_len, drafted, counts - 1)
            for row, slot in enumerate(running):
                candidate = rows.candidate[row]
                past[slot].take_in(
                    int(rows.start[row]),
                    candidate[candidate >= 0].tolist() if rows.length[row] else [],
                    emitted[row, : counts[row]].tolist(),
                    int(drafted[row]),
                    int(copied_len[row]),
                    int(counts[row]) - 1,
                )
            if rng.random() < 0.1:
                forget(history, 2)
                past[2] = Past()


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    code = "from adaspec.predict.model import feature_fingerprint as f; print(f(), f())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [model.feature_fingerprint()] * 2


@pytest.mark.parametrize(
    ("place", "name", "column"),
    [
        (evidence, "observe_evidence", (-1, 6)),
        (splicing, "observe_splice", (-1, 3)),
        (features, "remember", (1, (0, 0))),
        (features, "BEFORE", None),
        (model, "SPLICE", None),
        (model, "HEADS", {"before": ("ngram_first",)}),
    ],
)
def test_another_definition_name_or_order_changes_the_fingerprint(
    place: object, name: str, column: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, whole = model.feature_fingerprint(), getattr(place, name)

    def changed(*given: Any) -> None:
        whole.py_func(*given)
        given[column[0]][column[1]] += 0.25

    if isinstance(whole, tuple):
        monkeypatch.setattr(place, name, whole[::-1])
    else:
        monkeypatch.setattr(place, name, column if isinstance(whole, dict) else changed)
    assert model.feature_fingerprint() != before
    monkeypatch.setattr(place, name, whole)
    assert model.feature_fingerprint() == before
