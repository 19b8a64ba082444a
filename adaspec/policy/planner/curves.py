"""Survival curves: P(the first j tokens of a draft are accepted), per row and source.

They are predicted before drafting, and revised by every token that the neural drafter shows. All of
them are facts of a text: neither load nor price enters, nor what was accepted of other drafts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.planner.state import (
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    NEURAL,
    NGRAM_EXPONENT,
    Planner,
    State,
    rows_of,
)
from adaspec.predict.features import (
    CANDIDATE,
    RowFacts,
    SpliceMatches,
    fill_evidence,
    fill_features,
    fill_splice,
)
from adaspec.predict.model import (
    ACCEPTED_NEXT,
    NEURAL_FIRST,
    NEURAL_MORE,
    NGRAM_AFTER,
    NGRAM_FIRST,
    NGRAM_MORE,
    SPLICE_FIRST,
    SPLICE_GAIN,
    SPLICE_MORE,
)
from adaspec.predict.network import predict_rows
from adaspec.predict.survival import fill_survival

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@compiled
def copy_chance(predicted: float) -> float:
    """P(a copy's first token is right): certain predictions are too hopeful."""
    return predicted**NGRAM_EXPONENT if predicted > 0 else 0.0


@compiled
def predict_before_drafting(planner: Planner) -> None:
    """Fill the curves of all rows by what is known before drafting."""
    model, state, rows = planner.model, planner.state, rows_of(planner)
    count = rows.slots.shape[0]
    fill_features(rows, model.tables, state.keys, state.features)
    predict_rows(model.before, state.features, count, state.scratch, state.predictions)
    for row in range(count):
        predicted = state.predictions[row]
        first = copy_chance(predicted[NGRAM_FIRST])
        if rows.length[row] == 0:
            first = 0.0
        fill_survival(first, predicted[NGRAM_MORE], model.ngram, state.ngram[row])
        first = predicted[NEURAL_FIRST] if rows.holds_neural[row] else 0.0
        fill_survival(first, predicted[NEURAL_MORE], model.neural, state.neural[row])
        spliced = max(min(np.expm1(predicted[SPLICE_GAIN]), LONGEST_SPLICE), 0.0)
        state.splice_expected[row] = spliced
        state.scale[row] = 1.0
        # Nothing is copied behind tokens whose match is not known; beyond a 0, no curve is read.
        state.splice[row, :, 1] = 0.0
        state.matching_tokens[row] = 0
        state.least_confidence[row] = np.nan


@compiled
def revise_by_draft(
    planner: Planner, tokens: Ints, confidences: Floats, depth: int, matches: SpliceMatches
) -> None:
    """Revise the curves of the rows that hold the drafter by its token at this depth.

    `matches` are those behind that token: they tell whether the draft was seen before, and what
    could be spliced on. Where the drafter gave no token (-1), nothing survives from here on.
    """
    model, state, rows = planner.model, planner.state, rows_of(planner)
    chosen = np.flatnonzero(rows.holds_neural).astype(np.int32)
    _observe_draft(state, rows, chosen, tokens, confidences, depth, matches)
    features, predictions = state.evidence_features, state.evidence_predictions
    predict_rows(model.evidence, features, chosen.shape[0], state.scratch, predictions)
    for place in range(chosen.shape[0]):
        row, predicted = chosen[place], predictions[place]
        neural = state.neural[row]
        if depth > 1:
            # A copy that says what this token says is had by keeping it; another one is right only
            # where this token is wrong.
            spliced = state.splice[row, depth - 1]
            for j in range(1, LONGEST_SPLICE + 1):
                spliced[j] *= 1.0 - predicted[ACCEPTED_NEXT]
        before, after = neural[depth], 0.0
        if tokens[row, depth - 1] >= 0:
            after = neural[depth - 1] * predicted[ACCEPTED_NEXT]
        scale = after / before if before > 0 else 0.0
        for k in range(depth, LONGEST_NEURAL + 1):
            neural[k] *= scale
        if rows.length[row] > 0:
            ngram = state.ngram[row]
            scale = copy_chance(predicted[NGRAM_AFTER]) / ngram[1] if ngram[1] > 0 else 0.0
            for k in range(1, LONGEST_NGRAM + 1):
                ngram[k] *= scale
    depths = np.full(rows.slots.shape[0], depth, np.int32)
    predict_splices(planner, depths, tokens, matches)


@compiled
def _observe_draft(
    state: State,
    rows: RowFacts,
    chosen: Ints,
    tokens: Ints,
    confidences: Floats,
    depth: int,
    matches: SpliceMatches,
) -> None:
    """Fill the features of the tokens that the chosen rows drafted at this depth."""
    j = depth - 1
    for place in range(chosen.shape[0]):
        row = chosen[place]
        # Behind the candidate's end both may be -1, and that is no agreement.
        drafted = tokens[row, j] >= 0
        matches_copy = drafted and depth <= CANDIDATE and rows.candidate[row, j] == tokens[row, j]
        if matches_copy and state.matching_tokens[row] == j:
            state.matching_tokens[row] = depth
        reached = state.neural[row, j]
        expected = state.neural[row, depth] / reached if reached > 0 else 0.0
        fill_evidence(
            depth,
            expected,
            confidences[row, j],
            state.matching_tokens[row],
            float(rows.length[row]),
            state.ngram[row, 1],
            reached,
            state.least_confidence[row],
            matches.length[row],
            matches.votes[row],
            matches.occurrences[row],
            state.evidence_features[place],
        )
        for kind in range(2):
            confidence = confidences[row, j, kind]
            if not confidence >= state.least_confidence[row, kind]:
                state.least_confidence[row, kind] = confidence


@compiled
def predict_splices(planner: Planner, depths: Ints, tokens: Ints, matches: SpliceMatches) -> None:
    """Fill the curves of splices behind `depths` neural tokens, by the match there."""
    model, state, rows = planner.model, planner.state, rows_of(planner)
    # Taken out of their tuples once: handing those to a function row by row costs more than all.
    holds, length = rows.holds_neural, matches.length
    found, count = np.empty(holds.shape[0], np.int32), 0
    for row in range(holds.shape[0]):
        depth = depths[row]
        if not holds[row] or depth == 0 or length[row] == 0:
            continue
        fill_splice(
            matches.length[row],
            matches.votes[row],
            matches.occurrences[row],
            matches.available[row],
            depth,
            state.neural[row, depth] / state.scale[row, NEURAL],
            float(rows.length[row]),
            rows.position[row],
            model.tables,
            tokens[row, depth - 1] if tokens.shape[1] >= depth else -1,
            matches.copied[row],
            state.keys,
            state.splice_features[count],
        )
        found[count] = row
        count += 1
    features, predictions = state.splice_features, state.splice_predictions
    predict_rows(model.splice, features, count, state.scratch, predictions)
    for place in range(count):
        row, predicted = found[place], predictions[place]
        depth = depths[row]
        survival = state.splice[row, depth]
        fill_survival(predicted[SPLICE_FIRST], predicted[SPLICE_MORE], model.spliced, survival)
        room = max(min(matches.available[row], planner.run[0].cap - depth), 0)
        for j in range(room + 1, LONGEST_SPLICE + 1):
            survival[j] = 0.0
