"""Fits LightGBM's boosters on examples, and distils a model from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.features import BEFORE
from adaspec.predict.model import HEADS, Model, no_curves
from adaspec.predict.network import Network, constant_network
from adaspec.predict.splicing import SPLICE
from adaspec.predict.survival import Curves, fit_curves
from adaspec.predict.tables import Tables
from adaspec.replay.recording import Recording
from adaspec.train.distillation import Distilling
from adaspec.train.examples import Array, Examples, Floats, Longs, Sample
from adaspec.train.teacher import distilled

Boosters = dict[str, lightgbm.Booster]

CURVE_BINS = 20
GAIN_DEPTH = 2
"""Number of neural tokens behind which the expected gain of a splice is learned."""
MAX_GAIN = 10
MIN_EXAMPLES = 50
_SOURCES = {
    "ngram": (BEFORE, LONGEST_NGRAM, CURVE_BINS),
    "neural": (BEFORE, LONGEST_NEURAL, CURVE_BINS),
    "splice": (SPLICE, LONGEST_SPLICE, 10),
}
"""The features by which a source is judged, its longest draft, and the bins of its curves."""
THREAD_EXAMPLES = 200_000
"""Examples per thread: with fewer, threads only wait for each other."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How trees are grown, and networks distilled from them."""

    seed: int = 0
    rounds: int = 90
    leaves: int = 15
    rate: float = 0.07
    threads: int = 2
    max_examples: int = 400_000
    """Largest sample; a larger one is thinned to this size at random."""
    parts: int = 3
    """Number of parts into which requests are dealt, to score each part by trees that never saw it.
    Below 2, curves are fitted over the scores of trees that saw the requests."""
    distilling: Distilling = field(default_factory=Distilling)

    def rough(self) -> Settings:
        """Settings for models that only steer rollouts."""
        distilling = replace(self.distilling, width=32, passes=6, least_steps=1500)
        return replace(
            self, rounds=60, rate=0.1, max_examples=60_000, parts=0, distilling=distilling
        )

    def parameters(self, objective: str, examples: int) -> dict[str, object]:
        """LightGBM's parameters, by which the same data and seed always give the same trees."""
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
    """One head's trees, or a constant if the target does not vary or examples are too few."""
    if len(y) < MIN_EXAMPLES or y.min() == y.max():
        return constant(float(np.average(y, weights=weight)) if len(y) else 0.0, names)
    parameters = settings.parameters(objective, len(y))
    data = lightgbm.Dataset(x, y, weight=weight, feature_name=list(names))
    return lightgbm.train(parameters, data, settings.rounds)


def constant(value: float, names: tuple[str, ...]) -> lightgbm.Booster:
    """A booster that always predicts `value`, as LightGBM refuses to train on no examples."""
    data = lightgbm.Dataset(
        np.zeros((2, len(names)), np.float32), np.full(2, value), feature_name=list(names)
    )
    parameters = {"objective": "regression", "num_threads": 1, "verbose": -1}
    return lightgbm.train(parameters, data, 1)


def held_out_scores(
    booster: lightgbm.Booster,
    x: Floats,
    y: Array,
    weight: Array,
    request: Longs | NDArray[np.int32],
    objective: str,
    names: tuple[str, ...],
    settings: Settings,
) -> Array:
    """The score of every example, from trees that never saw its request.

    Scores of trees that saw the request would make the curves too optimistic at the highest
    scores. Rough settings accept that, and use the scores of `booster`.
    """
    if settings.parts < 2:
        return np.asarray(booster.predict(x, num_threads=settings.threads), np.float64)
    scores = np.zeros(len(y))
    for part in range(settings.parts):
        inside = request % settings.parts == part
        if inside.any():
            others = boost(x[~inside], y[~inside], weight[~inside], objective, names, settings)
            scores[inside] = others.predict(x[inside], num_threads=settings.threads)
    return scores


def fit_before(
    recording: Recording, examples: Examples, settings: Settings
) -> tuple[Boosters, dict[str, Curves]]:
    """The heads that predict before drafting, and the survival curves of both sources."""
    columns = recording.columns
    positions, x, w = examples.decisions.at, examples.decisions.x, examples.decisions.weight
    run, neural = columns.run[positions], columns.neural[positions]
    request = request_at(recording, positions)
    boosters: Boosters = {}
    curves: dict[str, Curves] = {}
    for source, accepted, usable in (
        ("ngram", run, columns.match[positions] > 0),
        ("neural", neural, (neural >= 0) & (recording.neural_cap > 0)),
    ):
        at = positions[usable]
        heads, curves[source] = _fit_source(
            source, x[usable], accepted[usable], w[usable], recording, at, settings
        )
        boosters |= heads
    behind = positions + GAIN_DEPTH
    ended = behind >= columns.offset[request] + columns.length[request]
    usable = (neural >= GAIN_DEPTH) & ~ended
    usable &= is_text_known(recording, positions, GAIN_DEPTH + MAX_GAIN)
    gain = np.minimum(columns.run[np.minimum(behind, len(columns.run) - 1)], MAX_GAIN)
    logs = np.log1p(gain[usable].astype(np.float64))
    boosters["splice_gain"] = boost(x[usable], logs, w[usable], "regression", BEFORE, settings)
    return {head: boosters[head] for head in HEADS["before"]}, curves


def fit_splice(
    recording: Recording, examples: Examples, settings: Settings
) -> tuple[Boosters, Curves]:
    """The heads that judge a match behind neural tokens, fitted where those were accepted."""
    columns, splices = recording.columns, examples.splices
    positions = splices.at + splices.depth
    # After the last token of an output there is nothing to copy.
    request = request_at(recording, splices.at)
    known = columns.neural[splices.at] >= splices.depth
    known &= positions < columns.offset[request] + columns.length[request]
    at = positions[known]
    x, weight = splices.x[known], np.ones(len(at))
    return _fit_source("splice", x, columns.run[at], weight, recording, at, settings)


def _fit_source(
    source: str,
    x: Floats,
    run: NDArray[np.int16],
    weight: Array,
    recording: Recording,
    at: Longs,
    settings: Settings,
) -> tuple[Boosters, Curves]:
    """Heads for P(run >= 1) and for a run's length, and survival curves by the latter's scores.

    Lengths are learned where the longest draft ends before the text does that is known: runs that
    a limit of tokens cut off would teach that runs are short at such positions.
    """
    names, longest, bins = _SOURCES[source]
    some = run >= 1
    first = boost(x, some.astype(np.float64), weight, "binary", names, settings)
    known = some & is_text_known(recording, at, longest)
    some = known if np.count_nonzero(known) >= MIN_EXAMPLES else some
    x, weight, request = x[some], weight[some], request_at(recording, at[some])
    lengths = np.minimum(run[some], longest).astype(np.float64)
    logs = np.log1p(lengths)
    more = boost(x, logs, weight, "regression", names, settings)
    curves = no_curves(longest)
    if some.any():
        # n-gram curves are fitted over scores of trees that saw the requests: trees that did not
        # would be the sounder choice, and would change every trained policy.
        scoring = replace(settings, parts=0) if source == "ngram" else settings
        scores = held_out_scores(more, x, logs, weight, request, "regression", names, scoring)
        curves = fit_curves(scores, lengths, weight, longest, bins)
    return {f"{source}_first": first, f"{source}_more": more}, curves


def fit_evidence(recording: Recording, examples: Examples, settings: Settings) -> Boosters:
    """The heads that read drafted tokens."""
    columns = recording.columns
    evidence = examples.evidence
    known = is_text_known(recording, evidence.at, evidence.depth)
    positions, depth, x = evidence.at[known], evidence.depth[known], evidence.x[known]
    neural, w = columns.neural[positions], np.ones(len(positions))

    def fit(chosen: NDArray[np.bool_], outcome: NDArray[np.bool_]) -> lightgbm.Booster:
        y = outcome[chosen].astype(np.float64)
        return boost(x[chosen], y, w[chosen], "binary", EVIDENCE, settings)

    reached = neural >= depth - 1
    return {
        "accepted_next": fit(reached, neural >= depth),
        "ngram_after": fit(columns.match[positions] > 0, columns.run[positions] >= 1),
        # The tokens drafted behind a wrong token show that it was wrong.
        "accepted_before": fit(depth >= 2, reached),
    }


def with_constant(model: Model, group: str, value: float) -> Model:
    """The model with constant heads in a group."""
    return replace(model, networks={**model.networks, group: constant_heads(group, value)})


def constant_heads(group: str, value: float) -> Network:
    """A network all of whose heads always predict `value`."""
    return constant_network([value] * len(HEADS[group]))


def model_of(
    boosters: Mapping[str, Boosters],
    samples: Mapping[str, Sample],
    curves: Mapping[str, Curves],
    tables: Tables,
    settings: Settings,
) -> Model:
    """The model whose networks predict what these boosters predict for the samples' features."""
    networks = {
        group: distilled(group, heads, samples[group], settings.distilling, settings.threads)
        for group, heads in boosters.items()
    }
    return Model(networks, curves, tables)


def request_at(recording: Recording, at: Longs) -> Longs:
    """The request of each flat position."""
    return np.searchsorted(recording.columns.offset, at, side="right") - 1


def is_text_known(recording: Recording, at: Longs, tokens: int | NDArray[Any]) -> NDArray[np.bool_]:
    """Whether the recording tells what the next `tokens` tokens are at each flat position.

    It does not where they would reach past the end of an output that a limit cut off. Past any
    other end there are none, which is known too.
    """
    request = request_at(recording, at)
    cut_off = np.array([each.is_cut_off for each in recording.requests])
    ends = recording.columns.offset[request] + recording.columns.length[request]
    known: NDArray[np.bool_] = ~cut_off[request] | (ends - at >= tokens)
    return known


def model_text(boosters: Mapping[str, Mapping[str, lightgbm.Booster]]) -> str:
    """Every booster in LightGBM's text format under a line with its name, for audit.

    The line with the number of threads is left out, so that equal trees give equal text.
    """
    parts = []
    for group, heads in sorted(boosters.items()):
        for head, booster in heads.items():
            lines = booster.model_to_string(num_iteration=-1).splitlines()
            text = "\n".join(line for line in lines if not line.startswith("[num_threads: "))
            parts.append(f"==== {group}: {head} ====\n{text}\n")
    return "".join(parts)
