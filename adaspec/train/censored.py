"""Fits a model on what a live policy logged: drafts censored at the lengths that it chose.

What a log identifies: n-gram outcomes follow from the text at every step. A neural draft of K
tokens reaches depth d <= K if the d - 1 tokens before it were accepted, and then shows whether
token d was accepted: one Bernoulli example of the hazard at depth d. Nothing is known about depths
beyond K or after the end of the output. So survival is the product of hazards, each estimated from
the drafts that reached its depth (Kaplan and Meier's estimate, by score bins), never the mean of
censored counts. Depths that fewer than `MIN_EXAMPLES` drafts reached are unknown, and the policy's
cap ends before them.

This is right if the logging policy chose its lengths by what the features say. Lengths chosen by
evidence that was not logged (confidences) bias deep hazards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import lightgbm
import numpy as np
from numpy.typing import NDArray

from adaspec.errors import TrainingError
from adaspec.jit import compiled
from adaspec.policy.planner.memory import LONGEST_NEURAL
from adaspec.predict.features import (
    BEFORE,
    CANDIDATE,
    FEATURES,
    TAIL,
    RowFacts,
    observe,
)
from adaspec.predict.model import Model
from adaspec.predict.splicing import SPLICE, observe_splice
from adaspec.predict.survival import Curves
from adaspec.predict.tables import LEVELS, Tables
from adaspec.replay.logged import Log
from adaspec.replay.recording import AGREE, AVAILABLE, LENGTH, SEEN, START, RecordedArrays
from adaspec.trace.dialogues import dialogue_hashes
from adaspec.train.examples import NO_SPLICES, Array, Examples, Floats, Longs, Sample, sample
from adaspec.train.heads import (
    CURVE_BINS,
    MIN_EXAMPLES,
    Boosters,
    Settings,
    boost,
    fit_before,
    fit_splice,
    held_out_scores,
    model_of,
)
from adaspec.train.token_tables import TableMaker

Ints = NDArray[np.int32]
Members = NDArray[np.bool_]

FOLDS = 3
IMAGINARY = 30.0
"""Imaginary drafts added to every bin and depth, with the hazard of all bins together."""
_SURVIVAL = SPLICE.index("neural_survival")


@dataclass(frozen=True, slots=True)
class Hazards:
    """One example for each step and each depth that its neural draft reached."""

    step: Longs
    depth: Longs
    accepted: NDArray[np.bool_]


def hazards_of(log: Log) -> Hazards:
    """The examples of all steps; depths after the end of the output give no example."""
    chosen = np.flatnonzero(log.neural_len > 0)
    taken, ended = log.neural_accepted[chosen], log.ended[chosen]
    reached = np.minimum(log.neural_len[chosen], taken + ~ended)
    reached = np.minimum(reached, LONGEST_NEURAL)
    step = np.repeat(np.arange(len(chosen)), reached)
    depth = np.arange(len(step)) - np.repeat(np.cumsum(reached) - reached, reached) + 1
    return Hazards(chosen[step], depth, depth <= taken[step])


def identified_depth(hazards: Hazards) -> int:
    """The greatest depth up to which every depth has enough examples."""
    counts = np.bincount(hazards.depth, minlength=LONGEST_NEURAL + 2)[1 : LONGEST_NEURAL + 1]
    return int(np.argmin(np.append(counts >= MIN_EXAMPLES, False)))


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model, the boosters it was distilled from, and the longest neural draft it may ask for."""

    model: Model
    boosters: dict[str, Boosters]
    neural_cap: int


def fit_censored(log: Log, settings: Settings) -> Fitted:
    """Fit every head that the log identifies, on all of its requests."""
    everyone = np.ones(len(log.recording), np.bool_)
    maker = TableMaker(log.recording, settings.seed)
    rng = np.random.default_rng([settings.seed, 0x106])
    _, first, turns = np.unique(
        dialogue_hashes(log.recording.requests), return_index=True, return_inverse=True
    )
    fold_of = (rng.permutation(len(log.recording)) % FOLDS)[first[turns]]
    folds = [fold_of == fold for fold in range(FOLDS)]
    seen = seen_in(log, ((maker.make(everyone & ~fold), fold) for fold in folds))
    hazards = hazards_of(log)
    deepest = identified_depth(hazards)
    drafts = int((log.neural_len > 0).sum())
    if drafts and not deepest:
        raise TrainingError(
            f"neural drafts were verified at {drafts:,} logged steps only, {MIN_EXAMPLES} are "
            "needed to learn when they are accepted: log with a policy that drafts more often, or "
            "record a dense trace"
        )
    decisions = sample(log.at, seen.x)
    before, curves = fit_before(log.recording, Examples(decisions), settings)
    if deepest:
        heads, curves["neural"] = _fit_neural(log, seen.x, hazards, deepest, settings)
        before = {head: heads.get(head, booster) for head, booster in before.items()}
    examples = Examples(decisions, _splices(log, seen, before, curves["neural"]))
    splice, curves["splice"] = fit_splice(log.recording, examples, settings)
    boosters = {"before": before, "splice": splice}
    tables = maker.make(everyone)
    model = model_of(boosters, examples.by_group, curves, tables, settings)
    return Fitted(model, boosters, deepest)


def _fit_neural(
    log: Log, x: Floats, hazards: Hazards, deepest: int, settings: Settings
) -> tuple[Boosters, Curves]:
    """Heads for P(first accepted) and P(one more | one or more), curves by the latter's bins."""
    y = hazards.accepted.astype(np.float64)
    first, later = hazards.depth == 1, (hazards.depth > 1) & (hazards.depth <= deepest)

    def fitted(chosen: NDArray[np.bool_]) -> lightgbm.Booster:
        steps = hazards.step[chosen]
        return boost(x[steps], y[chosen], np.ones(len(steps)), "binary", BEFORE, settings)

    heads = {"neural_first": fitted(first), "neural_more": fitted(later)}
    step, y = hazards.step[later], y[later]
    request, alike = log.request[step], np.ones(len(step))
    scores = held_out_scores(
        heads["neural_more"], x[step], y, alike, request, "binary", BEFORE, settings
    )
    return heads, hazard_curves(scores, hazards.depth[later], y, deepest, CURVE_BINS)


def hazard_curves(scores: Array, depth: Longs, accepted: Array, deepest: int, bins: int) -> Curves:
    """P(accepted >= j | accepted >= 1), the product of hazards, by score bins of equal size."""
    edges = np.empty(0)
    if len(scores):
        order = np.argsort(scores, kind="stable")
        share = np.arange(1.0, len(order) + 1) / len(order)
        cuts = np.searchsorted(share, np.arange(1, bins) / bins)
        edges = np.unique(scores[order][np.minimum(cuts, len(order) - 1)])
    bin_of = np.searchsorted(edges, scores, side="right")
    size = (len(edges) + 1, LONGEST_NEURAL + 1)
    reached, taken = np.zeros(size), np.zeros(size)
    np.add.at(reached, (bin_of, depth), 1)
    np.add.at(taken, (bin_of, depth), accepted)
    pooled = taken.sum(0) / np.maximum(reached.sum(0), 1e-12)
    hazard = (taken + IMAGINARY * pooled) / (reached + IMAGINARY)
    hazard[:, :2] = 1.0
    hazard[:, deepest + 1 :] = 0.0
    return Curves(edges.astype(np.float64), np.cumprod(hazard, axis=1))


def survival(first: Array, more: Array, curves: Curves) -> Array:
    """P(accepted >= j) for each row, by what a source's two heads predict."""
    curve = first[:, None] * curves.shapes[np.searchsorted(curves.edges, more, side="right")]
    curve[:, 0] = 1.0
    return curve


@dataclass(frozen=True, slots=True)
class Seen:
    """Features of a log, per step and per accepted neural token that a match follows."""

    x: Floats
    splice_step: Longs
    splice_tokens: Ints
    """Accepted neural tokens before each splice; 0 in rows that are not filled in."""
    splice_x: Floats
    """Features of the splices; `neural_survival` is filled in later, by a model."""


def _splices(log: Log, seen: Seen, before: Boosters, curves: Curves) -> Sample:
    """The matches behind accepted neural tokens, whose outcomes are known from the text."""
    filled = seen.splice_tokens > 0
    step, tokens = seen.splice_step[filled], seen.splice_tokens[filled]
    if not len(step):
        return NO_SPLICES
    x = seen.splice_x[filled]
    first, more = (
        np.asarray(before[head].predict(seen.x[step]), np.float64)
        for head in ("neural_first", "neural_more")
    )
    x[:, _SURVIVAL] = survival(first, more, curves)[np.arange(len(step)), tokens]
    return sample(log.at[step], x, tokens)


def seen_in(log: Log, walks: Iterable[tuple[Tables, Members]]) -> Seen:
    """What the steps of each marked group of requests saw, under its tables."""
    taken = np.minimum(log.neural_accepted, LONGEST_NEURAL)
    # Every accepted neural token may have a splice behind it.
    room = np.concatenate([[0], np.cumsum(taken)]).astype(np.int64)
    splices = int(room[-1])
    seen = Seen(
        np.empty((len(log.position), FEATURES), np.float32),
        np.zeros(splices, np.int64),
        np.zeros(splices, np.int32),
        np.empty((splices, len(SPLICE)), np.float32),
    )
    steps = log.first, log.position
    splice = room, seen.splice_step, seen.splice_tokens, seen.splice_x
    for tables, members in walks:
        _walk(log.recording.arrays, *steps, tables, np.flatnonzero(members), seen.x, *splice)
    return seen


@compiled
def _walk(
    arrays: RecordedArrays,
    first: Longs,
    position: Ints,
    tables: Tables,
    requests: Longs,
    out: Floats,
    room: Longs,
    splice_step: Longs,
    splice_tokens: Ints,
    splice_x: Floats,
) -> None:
    columns, facts = arrays.columns, arrays.facts
    keys = np.zeros(LEVELS, np.uint64)
    alone = np.zeros(1, np.int32)
    for r in requests:
        for step in range(first[r], first[r + 1]):
            p = position[step]
            observe(_row_at(arrays, r, p), alone, tables, keys, out[step : step + 1])
            i, splice = columns.offset[r] + p, room[step]
            for k in range(1, min(room[step + 1] - splice, columns.length[r] - p - 1) + 1):
                if facts[LENGTH, i + k] > 0:
                    observe_splice(
                        facts[LENGTH, i + k],
                        facts[AGREE, i + k],
                        facts[SEEN, i + k],
                        facts[AVAILABLE, i + k],
                        k,
                        0.0,
                        float(facts[LENGTH, i]),
                        p,
                        tables,
                        -1,
                        -1,
                        keys,
                        splice_x[splice + k - 1],
                    )
                    splice_step[splice + k - 1], splice_tokens[splice + k - 1] = step, k


@compiled
def _row_at(arrays: RecordedArrays, r: int, p: int) -> RowFacts:
    """The facts of one request at one position, as a batch of one."""
    columns = arrays.columns
    i, base = columns.offset[r] + p, arrays.text_start[r]
    known = columns.prompt[r] + p
    tail = np.full((1, TAIL), -1, np.int32)
    candidate = np.full((1, CANDIDATE), -1, np.int32)
    for k in range(min(TAIL, known)):
        tail[0, TAIL - 1 - k] = arrays.text[base + known - 1 - k]
    for k in range(min(CANDIDATE, arrays.facts[AVAILABLE, i])):
        candidate[0, k] = arrays.text[base + arrays.facts[START, i] + k]
    return RowFacts(
        np.zeros(1, np.int32),
        np.full(1, columns.prompt[r], np.int32),
        np.full(1, p, np.int32),
        np.ones(1, np.bool_),
        np.full(1, arrays.facts[LENGTH, i], np.int32),
        np.full(1, arrays.facts[START, i], np.int32),
        np.full(1, arrays.facts[AGREE, i], np.int32),
        np.full(1, arrays.facts[SEEN, i], np.int32),
        np.full(1, arrays.facts[AVAILABLE, i], np.int32),
        tail,
        candidate,
    )
