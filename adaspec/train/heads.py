"""Fits LightGBM's trees on rows and their outcomes: heads, and survival curves by their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import lightgbm
import numpy as np
from numpy.typing import NDArray

from adaspec.predict.model import FEATURE_NAMES, HEADS, LONGEST
from adaspec.predict.network import BinnedCurves
from adaspec.train.rows import (
    MIN_EXAMPLES,
    Array,
    FeatureRows,
    Floats,
    Ints,
    Outcomes,
    Recorded,
    expected_log,
    fit_curves,
)

Boosters = dict[str, lightgbm.Booster]
"""The trees of one group, by head."""

GAIN_DEPTH = 2
"""Number of neural tokens behind which the expected gain of a splice is learned."""
MAX_GAIN = 10
_BINS = {"ngram": 20, "neural": 20, "splice": 10}
_THREAD_ROWS = 200_000
"""Rows per thread: with fewer, threads only wait for each other."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How trees are grown, and networks fitted to them."""

    seed: int = 0
    rounds: int = 90
    leaves: int = 15
    rate: float = 0.07
    threads: int = 2
    max_rows: int = 400_000
    """Most rows of a group; more are thinned to this number at random."""
    parts: int = 3
    """Number of parts into which requests are dealt, to score neural drafts and splices of each by
    trees that never saw it. Below 2, curves are fitted over the scores of trees that did."""
    width: int = 64
    steps: int = 2000
    """Steps of fitting a network: at least so many, in whole passes over the rows."""

    def rough(self) -> Settings:
        """Settings for models that only say which forwards are best."""
        return replace(self, rounds=60, rate=0.1, max_rows=60_000, parts=0, width=32, steps=500)

    def parameters(self, objective: str, rows: int) -> dict[str, object]:
        """LightGBM's parameters, by which the same data and seed always give the same trees."""
        return {
            "objective": objective,
            "learning_rate": self.rate,
            "num_leaves": self.leaves,
            "min_child_samples": int(np.clip(rows // 400, 5, 80)),
            "lambda_l2": 5.0,
            "feature_fraction": 0.7,
            "bagging_fraction": 0.7,
            "bagging_freq": 1,
            "max_bin": 127,
            "deterministic": True,
            "force_row_wise": True,
            "seed": self.seed,
            # On little data threads only wait for each other; the trees are the same either way.
            "num_threads": max(1, min(self.threads, rows // _THREAD_ROWS)),
            "verbose": -1,
        }


def constant(value: float, names: tuple[str, ...]) -> lightgbm.Booster:
    """A booster that always predicts `value`, as LightGBM refuses to train on no examples."""
    parameters = {"objective": "regression", "num_threads": 1, "verbose": -1}
    x, y = np.zeros((2, len(names)), np.float32), np.full(2, value)
    return lightgbm.train(parameters, lightgbm.Dataset(x, y, feature_name=list(names)), 1)


@dataclass(frozen=True, slots=True)
class HeadMaker:
    """Fits the heads of one group of features."""

    group: str
    settings: Settings

    def head(self, x: Floats, y: Array, objective: str) -> lightgbm.Booster:
        """One head's trees; a constant if the target does not vary or examples are too few."""
        names = FEATURE_NAMES[self.group]
        if len(y) < MIN_EXAMPLES or y.min() == y.max():
            return constant(float(y.mean()) if len(y) else 0.0, names)
        parameters = self.settings.parameters(objective, len(y))
        data = lightgbm.Dataset(x, y, feature_name=list(names))
        return lightgbm.train(parameters, data, self.settings.rounds)

    def share(self, x: Floats, outcome: NDArray[np.bool_]) -> lightgbm.Booster:
        """The head that predicts how likely something is."""
        return self.head(x, outcome.astype(np.float64), "binary")

    def source(
        self, source: str, x: Floats, outcomes: Outcomes, request: Ints
    ) -> tuple[Boosters, BinnedCurves]:
        """Heads for P(right >= 1) and for how many are right, and curves by the latter's scores."""
        longest = LONGEST[source]
        told, some = outcomes.known >= 1, outcomes.right >= 1
        first = self.share(x[told], some[told])
        x, request, outcomes = x[some], request[some], outcomes.chosen(some)
        logs = expected_log(outcomes, longest)
        more = self.head(x, logs, "regression")
        # Copies fare better by the scores of trees that saw the request: replays are 0.3 to 1%
        # faster than by others, from which the highest scores promise less than the network's do.
        parts = 0 if source == "ngram" else self.settings.parts
        scores = self._scores(more, x, logs, request, parts)
        curves = fit_curves(scores, outcomes, longest, _BINS[source])
        return {f"{source}_first": first, f"{source}_more": more}, curves

    def _scores(
        self, more: lightgbm.Booster, x: Floats, y: Array, request: Ints, parts: int
    ) -> Array:
        """The score of every row, from trees that never saw its request; of no parts, by `more`."""
        scores, threads = np.zeros(len(y)), self.settings.threads
        if parts < 2 and len(y):
            return np.asarray(more.predict(x, num_threads=threads))
        for part in range(parts):
            inside = request % parts == part
            if inside.any():
                others = self.head(x[~inside], y[~inside], "regression")
                scores[inside] = others.predict(x[inside], num_threads=threads)
        return scores


def fit_before(
    recorded: Recorded, rows: FeatureRows, make: HeadMaker
) -> tuple[Boosters, dict[str, BinnedCurves]]:
    """The heads that predict before drafting, and the survival curves of both sources."""
    request = recorded.request[rows.at]
    boosters, curves = dict[str, lightgbm.Booster](), dict[str, BinnedCurves]()
    for source, outcomes, where in recorded.sources(rows.at):
        told = rows.x[where], outcomes.chosen(where), request[where]
        heads, curves[source] = make.source(source, *told)
        boosters |= heads
    reached, copied = recorded.copied_behind(rows.at, GAIN_DEPTH)
    gain = expected_log(copied, MAX_GAIN)
    boosters["splice_gain"] = make.head(rows.x[reached], gain, "regression")
    return {head: boosters[head] for head in HEADS["before"]}, curves


def fit_splice(
    recorded: Recorded, rows: FeatureRows, make: HeadMaker
) -> tuple[Boosters, dict[str, BinnedCurves]]:
    """The heads that judge a match behind neural tokens, fitted where those were accepted."""
    reached, copied = recorded.copied_behind(rows.at, rows.depth)
    request = recorded.request[rows.at[reached]]
    boosters, curves = make.source("splice", rows.x[reached], copied, request)
    return boosters, {"splice": curves}


def fit_evidence(
    recorded: Recorded, rows: FeatureRows, make: HeadMaker
) -> tuple[Boosters, dict[str, BinnedCurves]]:
    """The heads that read drafted tokens; they have no curves."""
    columns = recorded.recording.columns
    outcomes = recorded.neural(rows.at)
    rows, right = rows.chosen(told := outcomes.known >= rows.depth), outcomes.right[told]
    reached, copies = right >= rows.depth - 1, columns.match[rows.at] > 0
    return {
        "accepted_next": make.share(rows.x[reached], (right >= rows.depth)[reached]),
        "ngram_after": make.share(rows.x[copies], columns.run[rows.at][copies] >= 1),
    }, {}


FIT = {"before": fit_before, "splice": fit_splice, "evidence": fit_evidence}


def model_text(boosters: Mapping[str, Boosters]) -> str:
    """Every booster in LightGBM's text format under a line with its name, for audit."""
    parts = []
    for group, heads in sorted(boosters.items()):
        for head, booster in heads.items():
            lines = booster.model_to_string(num_iteration=-1).splitlines()
            # Equal trees give equal text, from however many threads.
            text = "\n".join(line for line in lines if not line.startswith("[num_threads: "))
            parts.append(f"==== {group}: {head} ====\n{text}\n")
    return "".join(parts)
