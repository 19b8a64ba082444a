"""Fitting: examples to boosters, boosters to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import lightgbm
import numpy as np
from numpy.typing import NDArray

from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.predict.evidence import EVIDENCE, EXPECTED
from adaspec.predict.evidence_factors import EvidenceFactors, fit_factors, no_factors
from adaspec.predict.features import BEFORE
from adaspec.predict.forest import Forest
from adaspec.predict.model import FEATURE_NAMES, HEADS, Model, no_curves
from adaspec.predict.splicing import SPLICE
from adaspec.predict.survival import Curves, fit_curves
from adaspec.predict.tables import Tables
from adaspec.replay.tape import Tape
from adaspec.train.compilation import compile_forest

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Array = NDArray[np.float64]
Picked = NDArray[np.bool_] | Longs | slice

CURVE_BINS = 20
GAIN_BEHIND = 2
"""Neural tokens behind which the expected gain of a splice is learned."""
MOST_GAIN = 10
FEWEST_EXAMPLES = 50
THREAD_EXAMPLES = 200_000
"""Examples that keep a thread busy: with fewer, threads wait for each other, and on a busy machine
spin as they do."""


@dataclass(frozen=True, slots=True)
class Examples:
    """What rollouts saw: features, and the flat position whose outcome they are about."""

    at: Longs
    x: Floats
    weight: Array
    """What each of these counts; those of splices and evidence count alike."""
    splice_at: Longs
    splice_length: NDArray[np.int32]
    splice_x: Floats
    evidence_at: Longs
    evidence_depth: NDArray[np.int32]
    evidence_x: Floats

    def of(self, chosen: NDArray[np.bool_], request: NDArray[np.int32]) -> Examples:
        """Those of the requests marked in `chosen`."""
        return self._picked(
            chosen[request[self.at]],
            chosen[request[self.splice_at]],
            chosen[request[self.evidence_at]],
        )

    def thinned(self, most: int, seed: int) -> Examples:
        """At most so many of each kind, drawn at random."""
        rng = np.random.default_rng([seed, 0x7815])
        return self._picked(
            *(
                np.sort(rng.choice(size, most, replace=False)) if size > most else slice(None)
                for size in (len(self.at), len(self.splice_at), len(self.evidence_at))
            )
        )

    def _picked(self, a: Picked, b: Picked, c: Picked) -> Examples:
        return Examples(
            self.at[a],
            self.x[a],
            self.weight[a],
            self.splice_at[b],
            self.splice_length[b],
            self.splice_x[b],
            self.evidence_at[c],
            self.evidence_depth[c],
            self.evidence_x[c],
        )


def pooled(parts: list[Examples]) -> Examples:
    """All of them together."""
    return Examples(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in Examples.__dataclass_fields__
        )
    )


def evened(examples: Examples) -> Examples:
    """Weighed so that every position counts alike, however often somebody decided at it.

    Policies come to the hard positions more often. To weigh those more makes the trees worse.
    """
    _, place, times = np.unique(examples.at, return_inverse=True, return_counts=True)
    return replace(examples, weight=1.0 / times[place])


class Fitter(Protocol):
    """Someone else who may grow trees."""

    def boost(
        self,
        x: Floats,
        y: Array,
        weight: Array,
        names: tuple[str, ...],
        parameters: dict[str, object],
        rounds: int,
    ) -> lightgbm.Booster | None:
        """One head's trees, or None where they had better be grown here."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How trees are grown."""

    seed: int = 0
    rounds: int = 90
    leaves: int = 15
    rate: float = 0.07
    threads: int = 2
    fitter: Fitter | None = None
    """Who is asked before trees are grown here."""
    most: int = 400_000
    """Examples that a head is fitted on; of more, so many are drawn."""
    parts: int = 3
    """Into how many parts requests are dealt to score each by trees that never saw it; below 2
    curves are fitted over the trees' own scores."""

    def rough(self) -> Settings:
        """For models that only steer rollouts."""
        return replace(self, rounds=60, rate=0.1, most=60_000, parts=0)

    def parameters(self, objective: str, examples: int) -> dict[str, object]:
        """For LightGBM; the same data and seed give the same trees."""
        return {
            "objective": objective,
            "learning_rate": self.rate,
            "num_leaves": self.leaves,
            "min_child_samples": int(np.clip(examples // 400, 5, 80)),
            "lambda_l2": 5.0,
            "feature_fraction": 0.7,
            "bagging_fraction": 0.7,
            "bagging_freq": 1,
            "max_bin": 127,
            "deterministic": True,
            "force_row_wise": True,
            "seed": self.seed,
            # On little data threads only wait for each other; the trees are the same either way.
            "num_threads": max(1, min(self.threads, examples // THREAD_EXAMPLES)),
            "verbose": -1,
        }


def boost(
    x: Floats,
    y: Array,
    weight: Array,
    objective: str,
    names: tuple[str, ...],
    settings: Settings,
) -> lightgbm.Booster:
    """One head's trees; a target that does not vary, or too few examples, give a constant."""
    if len(y) < FEWEST_EXAMPLES or y.min() == y.max():
        return constant(float(np.average(y, weights=weight)) if len(y) else 0.0, names)
    parameters = settings.parameters(objective, len(y))
    if settings.fitter is not None:
        grown = settings.fitter.boost(x, y, weight, names, parameters, settings.rounds)
        if grown is not None:
            return grown
    data = lightgbm.Dataset(x, y, weight=weight, feature_name=list(names))
    return lightgbm.train(parameters, data, settings.rounds)


def constant(value: float, names: tuple[str, ...]) -> lightgbm.Booster:
    """A booster that always says `value`: LightGBM refuses to be trained on nothing."""
    data = lightgbm.Dataset(
        np.zeros((2, len(names)), np.float32), np.full(2, value), feature_name=list(names)
    )
    parameters = {"objective": "regression", "num_threads": 1, "verbose": -1}
    return lightgbm.train(parameters, data, 1)


def unseen_scores(
    x: Floats,
    y: Array,
    weight: Array,
    request: Longs,
    names: tuple[str, ...],
    settings: Settings,
    objective: str = "regression",
) -> Array:
    """Every example's score by trees that never saw its request.

    Curves over scores of trees that did would promise too much of the highest.
    """
    scores = np.zeros(len(y))
    for part in range(settings.parts):
        inside = request % settings.parts == part
        if inside.any():
            others = boost(x[~inside], y[~inside], weight[~inside], objective, names, settings)
            scores[inside] = others.predict(x[inside])
    return scores


def fit_before(
    tape: Tape, examples: Examples, settings: Settings
) -> tuple[dict[str, lightgbm.Booster], dict[str, Curves]]:
    """The heads that speak before drafting, and the curves of both sources."""
    columns = tape.columns
    at, x, w = examples.at, examples.x, examples.weight
    run = np.minimum(columns.run[at], LONGEST_NGRAM).astype(np.float64)
    neural = np.minimum(columns.neural[at], LONGEST_NEURAL).astype(np.float64)
    request = _request(tape, at)
    boosters, curves = {}, {}
    sources = [("ngram", run, columns.match[at] > 0, LONGEST_NGRAM)]
    if tape.neural_cap:
        sources.append(("neural", neural, neural >= 0, LONGEST_NEURAL))
    for name, accepted, usable, longest in sources:
        y = (accepted[usable] >= 1).astype(np.float64)
        boosters[f"{name}_first"] = boost(x[usable], y, w[usable], "binary", BEFORE, settings)
        some = usable & (accepted >= 1)
        more = boost(x[some], np.log1p(accepted[some]), w[some], "regression", BEFORE, settings)
        boosters[f"{name}_more"] = more
        if some.any():
            if name == "neural" and settings.parts >= 2:
                scores = unseen_scores(
                    x[some], np.log1p(accepted[some]), w[some], request[some], BEFORE, settings
                )
            else:
                scores = np.asarray(more.predict(x[some]), np.float64)
            curves[name] = fit_curves(scores, accepted[some], w[some], longest, CURVE_BINS)
    behind = at + GAIN_BEHIND
    ended = examples_position(tape, at) + GAIN_BEHIND >= columns.length[request]
    usable = (columns.neural[at] >= GAIN_BEHIND) & ~ended
    gain = np.minimum(columns.run[np.minimum(behind, len(columns.run) - 1)], MOST_GAIN)
    boosters["splice_gain"] = boost(
        x[usable],
        np.log1p(gain[usable].astype(np.float64)),
        w[usable],
        "regression",
        BEFORE,
        settings,
    )
    empty = np.empty((0, len(BEFORE)), np.float32)
    for head in HEADS["before"]:
        if head not in boosters:
            boosters[head] = boost(empty, np.empty(0), np.empty(0), "regression", BEFORE, settings)
    curves.setdefault("ngram", no_curves(LONGEST_NGRAM))
    curves.setdefault("neural", no_curves(LONGEST_NEURAL))
    return {head: boosters[head] for head in HEADS["before"]}, curves


def fit_splice(
    tape: Tape, examples: Examples, settings: Settings
) -> tuple[dict[str, lightgbm.Booster], Curves]:
    """The heads that judge a match behind neural tokens, learned where those were accepted."""
    columns = tape.columns
    whole = columns.neural[examples.splice_at] >= examples.splice_length
    at = examples.splice_at[whole] + examples.splice_length[whole]
    x = examples.splice_x[whole]
    # Behind the last token of an output there is nothing to copy.
    request = _request(tape, examples.splice_at[whole])
    inside = at < columns.offset[request] + columns.length[request]
    at, x = at[inside], x[inside]
    run = np.minimum(columns.run[at], LONGEST_SPLICE).astype(np.float64)
    ones = np.ones(len(run))
    first = boost(x, (run >= 1).astype(np.float64), ones, "binary", SPLICE, settings)
    some = run >= 1
    more = boost(x[some], np.log1p(run[some]), ones[some], "regression", SPLICE, settings)
    curves = no_curves(LONGEST_SPLICE)
    if some.any():
        if settings.parts >= 2:
            scores = unseen_scores(
                x[some], np.log1p(run[some]), ones[some], _request(tape, at)[some], SPLICE, settings
            )
        else:
            scores = np.asarray(more.predict(x[some]), np.float64)
        curves = fit_curves(scores, run[some], ones[some], LONGEST_SPLICE, 10)
    return {"splice_first": first, "splice_more": more}, curves


def fit_evidence(
    tape: Tape, examples: Examples, settings: Settings
) -> tuple[dict[str, lightgbm.Booster], EvidenceFactors]:
    """The heads that listen to drafted tokens, and how far those move what was thought before."""
    columns = tape.columns
    at, depth, x = examples.evidence_at, examples.evidence_depth, examples.evidence_x
    reached = columns.neural[at] >= depth - 1
    y = (columns.neural[at] >= depth).astype(np.float64)
    ones = np.ones(len(at))
    next_one = boost(x[reached], y[reached], ones[reached], "binary", EVIDENCE, settings)
    matched = columns.match[at] > 0
    hit = (columns.run[at] >= 1).astype(np.float64)
    after = boost(x[matched], hit[matched], ones[matched], "binary", EVIDENCE, settings)
    # Whatever lies behind a wrong token tells that it was wrong.
    later = depth >= 2
    sure = (columns.neural[at] >= depth - 1).astype(np.float64)
    before = boost(x[later], sure[later], ones[later], "binary", EVIDENCE, settings)
    x, y, request = x[reached], y[reached], _request(tape, at[reached])
    if settings.parts >= 2:
        thought = unseen_scores(x, y, ones[reached], request, EVIDENCE, settings, "binary")
    else:
        thought = np.asarray(next_one.predict(x), np.float64)
    factors = fit_factors(x[:, EXPECTED].astype(np.float64), thought)
    boosters = {"accepted_next": next_one, "ngram_after": after, "accepted_before": before}
    return boosters, factors


def model_of(
    boosters: Mapping[str, Mapping[str, lightgbm.Booster]],
    curves: Mapping[str, Curves],
    tables: Tables,
    factors: EvidenceFactors | None = None,
) -> Model:
    """Compile what was fitted."""
    forests: dict[str, Forest] = {
        group: compile_forest(heads, FEATURE_NAMES[group]) for group, heads in boosters.items()
    }
    return Model(forests, curves, tables, factors or no_factors())


def examples_position(tape: Tape, at: Longs) -> Longs:
    """Positions within their requests."""
    return at - tape.columns.offset[_request(tape, at)]


def _request(tape: Tape, at: Longs) -> Longs:
    return np.searchsorted(tape.columns.offset, at, side="right") - 1
