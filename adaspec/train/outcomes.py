"""What came of drafts: how many tokens were right, and of how many a recording tells.

Outcomes may be censored: what lies behind the end of an output that a limit cut off is not known. A
token is known to be wrong only where `known` reaches past those that are right; where it does not,
the draft might have gone on. Survival is therefore the product of hazards, each counted where it is
known (Kaplan and Meier's estimate), never the mean of censored counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.predict.model import LONGEST_NEURAL, LONGEST_NGRAM
from adaspec.predict.survival import BinnedCurves
from adaspec.replay.recording import Recording
from adaspec.train.rows import Array, Ints, Longs

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
