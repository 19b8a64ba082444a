"""Makes token tables from recorded acceptance: means are shrunk, and rare keys dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaspec.predict.tables import BASE, LEVELS, PARENT, SOURCE, Tables, level_keys, make_tables
from adaspec.replay.learned import known_at
from adaspec.replay.recording import Recording
from adaspec.trace.dialogues import prompt_hashes

SHRINKAGE = 5.0
"""Imaginary positions added to every key, which behave as those of its shorter key."""
MIN_REQUESTS = 3
"""Keys seen in fewer training requests are dropped, as they could reveal somebody's text."""


def _keys_of(
    recordings: Sequence[Recording], salt: int
) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int64]]:
    """Of each position: its keys, its request, counted through all recordings, and its place."""
    keys, requests, positions, counted = [], [], [], 0
    for recording in recordings:
        length = recording.columns.length
        request = np.repeat(np.arange(len(length)), length)
        at = np.arange(len(request))
        known = known_at(recording, at, request)
        keys.append(level_keys(salt, known.tail, known.candidate))
        positions.append(known.position.astype(np.int64))
        requests.append((request + counted).astype(np.int32))
        counted += len(recording)
    return np.concatenate(keys), np.concatenate(requests), np.concatenate(positions)


class TableMaker:
    """Makes the tables of any subset of a recording's requests.

    Requests of `texts`, which tell about copied tokens alone, are in the tables of every subset
    that has all recorded requests of their dialogue.
    """

    def __init__(self, recording: Recording, seed: int, texts: Recording | None = None) -> None:
        recordings = [recording] if texts is None else [recording, texts]
        self.salt = int(np.random.default_rng([seed, 0x7AB1E5]).integers(1, 1 << 63))
        keys, self._request, position = _keys_of(recordings, self.salt)
        self.distinct, self.place = [], []
        for level in range(LEVELS):
            distinct, place = np.unique(keys[:, level], return_inverse=True)
            self.distinct.append(distinct)
            self.place.append(place)
        neural, run, match = (
            np.concatenate([getattr(each.columns, name) for each in recordings])
            for name in ("neural", "run", "match")
        )
        decides = position >= 1
        self.targets = ((neural, decides & (neural >= 0)), (run, decides & (match > 0)))
        requests = [request for each in recordings for request in each.requests]
        _, dialogue = np.unique(prompt_hashes(requests), return_inverse=True)
        self._dialogue, self._dialogue_of_text = np.split(dialogue, [len(recording)])

    def make(self, members: NDArray[np.bool_]) -> Tables:
        """The tables of the requests marked in `members`."""
        others = self._dialogue[~members]
        members = np.concatenate([members, ~np.isin(self._dialogue_of_text, others)])
        mine = members[self._request]
        seen, bases = [], []
        for accepted, usable in self.targets:
            inside = usable & mine
            some = inside & (accepted >= 1)
            tokens = np.log1p(accepted[some].astype(np.float64))
            seen.append((inside, some, tokens))
            share = float(some[inside].mean()) if inside.any() else 0.0
            bases.append((share, float(tokens.mean()) if some.any() else 0.0))
        shrunk: list[NDArray[np.float64]] = []
        """By level, each key's mean and depth; of keys that are dropped, those of the shorter."""
        entries = []
        for level in range(LEVELS):
            inside, some, tokens = seen[SOURCE[level]]
            distinct, place = self.distinct[level], self.place[level]
            size = len(distinct)
            mass = np.bincount(place[inside], minlength=size).astype(np.float64)
            hits = np.bincount(place[some], minlength=size).astype(np.float64)
            logs = np.bincount(place[some], weights=tokens, minlength=size)
            parents = np.full((size, 2), bases[SOURCE[level]])
            if (above := PARENT[level]) != BASE:
                parents[place] = shrunk[above][self.place[above]]
            sums, counts = np.column_stack([hits, logs]), np.column_stack([mass, hits])
            values = (sums + SHRINKAGE * parents) / (counts + SHRINKAGE)
            pairs = np.unique(place[inside] * len(members) + self._request[inside])
            kept = np.bincount(pairs // len(members), minlength=size) >= MIN_REQUESTS
            kept &= distinct != 0
            shrunk.append(np.where(kept[:, None], values, parents))
            entries.append((distinct[kept], *values[kept].T, np.log1p(mass[kept])))
        keys, means, depths, log_counts = map(np.concatenate, zip(*entries, strict=True))
        return make_tables(
            keys,
            means.astype(np.float32),
            log_counts.astype(np.float32),
            depths.astype(np.float32),
            np.array(bases).T.ravel(),
            self.salt,
        )
