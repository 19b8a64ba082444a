"""What a model is fitted on: a table of what a policy sees at every position, and what came of it.

Outcomes say how many drafted tokens were right, and of how many a recording tells. They may be
censored: what lies behind the end of an output that a limit cut off is not known. A token is known
to be wrong only where `known` reaches past those that are right; where it does not, the draft might
have gone on. Survival is therefore the product of hazards, each counted where it is known (Kaplan
and Meier's estimate), never the mean of censored counts.

Token tables are made of recorded acceptance: means are shrunk, and rare keys dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.predict.model import LONGEST_NEURAL, LONGEST_NGRAM, Model
from adaspec.predict.network import BinnedCurves
from adaspec.predict.tables import BASE, LEVELS, PARENT, SOURCE, Tables, level_keys, make_tables
from adaspec.replay import learned
from adaspec.replay.learned import known_at
from adaspec.replay.recording import Recording
from adaspec.trace.identity import prompt_hashes

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Array = NDArray[np.float64]
Members = NDArray[np.bool_]


class FeatureRows(NamedTuple):
    """Rows of features, each with the flat position that it is about."""

    at: Longs
    depth: Ints
    """Neural tokens drafted there, that a splice lies behind or of which the last is looked at."""
    x: Floats

    def chosen(self, rows: NDArray[np.bool_] | Longs) -> FeatureRows:
        """Some of the rows."""
        return FeatureRows(self.at[rows], self.depth[rows], self.x[rows])


Table = dict[str, FeatureRows]
"""Rows by the group of heads that reads them."""


def survey(recording: Recording, model: Model, members: Members, most: int) -> Table:
    """What a model reads at every position of the marked requests, with drafts of up to `most`."""
    requests = np.flatnonzero(members).astype(np.int32)
    tables = []
    for seen in learned.predict_all(recording, model, requests, most):
        before = FeatureRows(seen.at, np.zeros(len(seen.at), np.int32), seen.before)
        table = {"before": before, "splice": _by_depth(seen.at, seen.splice)}
        table["splice"] = table["splice"].chosen(seen.shown.match.length.ravel() > 0)
        if seen.evidence.shape[1]:
            table["evidence"] = _by_depth(seen.at, seen.evidence)
        tables.append(table)
    return pooled(tables)


def _by_depth(at: Longs, features: Floats) -> FeatureRows:
    """Rows of (positions, tokens, features)."""
    positions, most, count = features.shape
    depth = np.tile(np.arange(1, most + 1, dtype=np.int32), positions)
    return FeatureRows(np.repeat(at, most), depth, features.reshape(positions * most, count))


def pooled(tables: Sequence[Table]) -> Table:
    """All rows of the tables, which have the same groups, as one table."""
    columns = {group: zip(*(each[group] for each in tables), strict=True) for group in tables[0]}
    return {group: FeatureRows(*map(np.concatenate, each)) for group, each in columns.items()}


def thinned(rows: FeatureRows, most: int, rng: np.random.Generator) -> FeatureRows:
    """At most so many of the rows, drawn at random, in order."""
    if len(rows.at) <= most:
        return rows
    return rows.chosen(np.sort(rng.choice(len(rows.at), most, replace=False)))


MIN_EXAMPLES = 50
IMAGINARY = 30.0
"""Imaginary drafts in every bin of a curve, which behave as those of all bins together."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Drafts of one kind, one per row: tokens that were right, of so many that are known."""

    right: Ints
    known: Ints

    def chosen(self, rows: NDArray[np.bool_] | Longs) -> Outcomes:
        """The outcomes of some rows."""
        return Outcomes(self.right[rows], self.known[rows])

    def up_to(self, longest: int) -> Outcomes:
        """The outcomes of drafts of at most so many tokens."""
        return Outcomes(np.minimum(self.right, longest), np.minimum(self.known, longest))


class Recorded:
    """The outcomes of a recording's drafts by flat position."""

    def __init__(self, recording: Recording) -> None:
        columns = recording.columns
        self.recording = recording
        self.request = np.repeat(np.arange(len(columns.length)), columns.length).astype(np.int32)
        left = (columns.offset[:-1] + columns.length)[self.request] - np.arange(len(self.request))
        cut_off = np.array([each.is_cut_off for each in recording.requests])
        # Behind the end of an output that a limit made, nothing is known.
        self._untold = np.where(cut_off[self.request], left, np.iinfo(np.int64).max)

    def neural(self, at: Longs) -> Outcomes:
        """Of neural drafts."""
        counts, most = self.recording.columns.neural[at], self.recording.neural_cap
        tried = np.where(counts >= 0, min(most, LONGEST_NEURAL), 0)
        known = np.minimum(tried, self._untold[at]).astype(np.int32)
        right = np.minimum(counts, known)
        return Outcomes(np.where(known > 0, right, 0).astype(np.int32), known)

    def copied(self, at: Longs) -> Outcomes:
        """Of copies of a position's match."""
        known = np.minimum(self._untold[at], LONGEST_NGRAM).astype(np.int32)
        return Outcomes(np.minimum(self.recording.columns.run[at], known).astype(np.int32), known)

    def sources(self, at: Longs) -> tuple[tuple[str, Outcomes, NDArray[np.bool_]], ...]:
        """Of each source that drafts alone, its outcomes, and where it drafts at all."""
        copies, anywhere = self.recording.columns.match[at] > 0, np.ones(len(at), np.bool_)
        return ("ngram", self.copied(at), copies), ("neural", self.neural(at), anywhere)

    def copied_behind(self, at: Longs, depth: Ints | int) -> tuple[NDArray[np.bool_], Outcomes]:
        """Where so many neural tokens are right and text follows; of the copies there."""
        columns, behind = self.recording.columns, at + depth
        request = self.request[at]
        reached = self.neural(at).right >= depth
        # After the last token of an output there is nothing to copy.
        reached &= behind < columns.offset[request] + columns.length[request]
        return reached, self.copied(behind[reached])


def expected_log(outcomes: Outcomes, longest: int) -> Array:
    """log(1 + tokens right); where it is not known, its mean over drafts that got as far."""
    survival = _survival(*_counted(outcomes, longest))
    steps = np.diff(np.log1p(np.arange(longest + 1)))
    ahead = np.append(np.cumsum((survival[1:] * steps)[::-1])[::-1], 0.0)
    further = np.divide(ahead, survival, out=np.zeros_like(ahead), where=survival > 0)
    right = outcomes.up_to(longest).right
    censored = right == outcomes.known
    return np.log1p(right) + np.where(censored, further[right], 0.0)


def fit_curves(scores: Array, outcomes: Outcomes, longest: int, bins: int) -> BinnedCurves:
    """P(right >= j | right >= 1) in equally large bins of the score, of drafts with right >= 1."""
    ascending = np.sort(scores)
    cuts = -(-np.arange(1, bins) * len(scores) // bins) - 1
    edges = np.unique(ascending[cuts]) if len(scores) else np.empty(0)
    bin_of = np.searchsorted(edges, scores, side="right")
    pooled = _survival(*_counted(outcomes, longest))
    before = np.append(1.0, pooled[:-1])
    shapes = np.ones((len(edges) + 1, longest + 1))
    for b in range(len(shapes)):
        reached, right = _counted(outcomes.chosen(bin_of == b), longest)
        shapes[b] = _survival(reached + IMAGINARY * before, right + IMAGINARY * pooled)
    shapes[:, :2] = 1.0
    return BinnedCurves(edges.astype(np.float64), shapes)


def _counted(outcomes: Outcomes, longest: int) -> tuple[Array, Array]:
    """By token, how many drafts tell of it, all before being right, and in how many it is right."""
    each = outcomes.up_to(longest)
    reached = np.minimum(each.right + 1, each.known)
    return _at_least(reached, longest), _at_least(each.right, longest)


def _at_least(counts: Ints | Longs, longest: int) -> Array:
    """By number up to `longest`, how many of `counts` are no smaller."""
    return np.bincount(counts, minlength=longest + 1)[::-1].cumsum()[::-1].astype(np.float64)


def _survival(reached: Array, right: Array) -> Array:
    """The product of hazards; 0 behind the last token of which anything is known."""
    hazard = np.divide(right, reached, out=np.zeros_like(right), where=reached > 0)
    hazard[0] = 1.0
    return np.multiply.accumulate(hazard)


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
