"""Survival curves: P(the first j tokens of a draft are accepted), per row and source.

They are predicted before drafting, and revised by every token that the neural drafter shows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.planner.learning import recalibrated
from adaspec.policy.planner.state import (
    IMPOSSIBLE,
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    NEURAL,
    NGRAM,
    NGRAM_EXPONENT,
    SPLICE,
    SPLICE_TOKENS,
    SPLICE_WEIGHT,
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
    ACCEPTED_BEFORE,
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
def predict_before_drafting(planner: Planner) -> None:
    """Fill the curves of all rows by what is known before drafting.

    The record has the factors by which they are recalibrated. The splice that may follow a neural
    draft costs the step's price per token.
    """
    model, state, rows = planner.model, planner.state, rows_of(planner)
    count, price = rows.slots.shape[0], planner.batch_state.step[0].price
    fill_features(rows, model.tables, state.keys, state.features)
    predict_rows(model.before, state.features, count, state.scratch, state.predictions)
    ngram_factor, neural_factor = state.record[NGRAM].factor, state.record[NEURAL].factor
    weight = SPLICE_WEIGHT * state.record[SPLICE].factor
    charge = SPLICE_TOKENS * price
    for row in range(count):
        predicted = state.predictions[row]
        first = recalibrated(predicted[NGRAM_FIRST], NGRAM_EXPONENT, ngram_factor)
        if rows.length[row] == 0:
            first = 0.0
        fill_survival(first, predicted[NGRAM_MORE], model.ngram, state.ngram[row])
        first = recalibrated(predicted[NEURAL_FIRST], 1.0, neural_factor)
        if not rows.holds_neural[row]:
            first = 0.0
        fill_survival(first, predicted[NEURAL_MORE], model.neural, state.neural[row])
        spliced = np.expm1(predicted[SPLICE_GAIN])
        spliced = max(min(spliced, LONGEST_SPLICE) * weight - charge, 0.0)
        state.splice_expected[row] = spliced
        # Rows are taken out once: what is reached through the state is looked up at every use.
        neural, splice_value = state.neural[row], state.splice_value[row]
        for k in range(LONGEST_NEURAL + 1):
            splice_value[k] = neural[k] * spliced
        state.splice_len[row] = 0
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
    price = planner.batch_state.step[0].price
    chosen = np.flatnonzero(rows.holds_neural).astype(np.int32)
    _observe_draft(state, rows, chosen, tokens, confidences, depth, matches)
    features, predictions = state.evidence_features, state.evidence_predictions
    predict_rows(model.evidence, features, chosen.shape[0], state.scratch, predictions)
    ngram_factor, neural_factor = state.record[NGRAM].factor, state.record[NEURAL].factor
    for place in range(chosen.shape[0]):
        row, predicted = chosen[place], predictions[place]
        neural = state.neural[row]
        if depth > 1:
            _revise_earlier(neural, depth - 1, predicted[ACCEPTED_BEFORE])
            # A copy that says what this token says is had by keeping it; another one is right only
            # where this token is wrong.
            wrong = max(0.0, 1.0 - predicted[ACCEPTED_NEXT])
            spliced = state.splice[row, depth - 1]
            for j in range(1, LONGEST_SPLICE + 1):
                spliced[j] *= wrong
            for k in range(1, depth):
                weigh_splice(state, row, k, price)
        before, after = neural[depth], 0.0
        if tokens[row, depth - 1] >= 0 and predicted[ACCEPTED_NEXT] > 0:
            after = neural[depth - 1] * min(1.0, predicted[ACCEPTED_NEXT])
        if depth == 1:
            after = min(1.0, after * neural_factor)
        scale = after / before if before > 0 else 0.0
        splice_value, expected = state.splice_value[row], state.splice_expected[row]
        for k in range(depth, LONGEST_NEURAL + 1):
            neural[k] *= scale
            splice_value[k] = neural[k] * expected
        if rows.length[row] > 0:
            first = recalibrated(predicted[NGRAM_AFTER], NGRAM_EXPONENT, ngram_factor)
            _revise_ngram(state, row, depth, first)
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
def _revise_earlier(survival: Array, depth: int, reached: float) -> None:
    """A later token also tells whether those up to `depth` were right: S(depth) is `reached`.

    Of what could have gone wrong up to there, nothing became likelier than the rest.
    """
    before, after = survival[depth], min(max(reached, 0.0), 1.0)
    if before <= 0:
        return
    scale = (1.0 - after) / (1.0 - before) if before < 1 else 0.0
    for k in range(1, depth):
        survival[k] = 1.0 - (1.0 - survival[k]) * scale
    survival[depth] = after
    for k in range(depth + 1, LONGEST_NEURAL + 1):
        survival[k] *= after / before


@compiled
def _revise_ngram(state: State, row: int, depth: int, first: float) -> None:
    """Scale a row's n-gram curve to its new first value, and bring it in line with the draft."""
    ngram, neural = state.ngram[row], state.neural[row]
    scale = first / ngram[1] if ngram[1] > IMPOSSIBLE else 0.0
    for k in range(1, LONGEST_NGRAM + 1):
        scaled = ngram[k] * scale
        ngram[k] = scaled if scaled < 1.0 else 1.0
    # Tokens that both propose are right together, and where they part one of them is wrong.
    matching_tokens = min(state.matching_tokens[row], depth)
    if matching_tokens == depth:
        _raise_to(ngram, matching_tokens, neural[matching_tokens])
    elif matching_tokens == depth - 1:
        _lower_to(ngram, depth, max(neural[matching_tokens] - neural[depth], 0.0))


@compiled
def predict_splices(planner: Planner, depths: Ints, tokens: Ints, matches: SpliceMatches) -> None:
    """Fill the curves and values of splices behind `depths` neural tokens, by the match there."""
    model, state, rows = planner.model, planner.state, rows_of(planner)
    price = planner.batch_state.step[0].price
    # Taken out of their tuples once: handing those to a function row by row costs more than all.
    holds, neural, length = rows.holds_neural, state.neural, matches.length
    found, count = np.empty(holds.shape[0], np.int32), 0
    for row in range(holds.shape[0]):
        depth = depths[row]
        if depth > 0:
            # Nothing survives: what lies behind in the curve is never read.
            state.splice[row, depth, 1] = 0.0
            state.splice_value[row, depth], state.splice_len[row, depth] = 0.0, 0
        if not holds[row] or depth == 0 or length[row] == 0 or neural[row, depth] < price:
            continue  # no match, or one that cannot pay
        fill_splice(
            matches.length[row],
            matches.votes[row],
            matches.occurrences[row],
            matches.available[row],
            depth,
            state.neural[row, depth],
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
    factor = state.record[SPLICE].factor
    for place in range(count):
        row, predicted = found[place], predictions[place]
        depth = depths[row]
        first = recalibrated(predicted[SPLICE_FIRST], 1.0, factor)
        survival = state.splice[row, depth]
        fill_survival(first, predicted[SPLICE_MORE], model.spliced, survival)
        room = max(min(matches.available[row], planner.run[0].cap - depth), 0)
        for j in range(room + 1, LONGEST_SPLICE + 1):
            survival[j] = 0.0
        weigh_splice(state, row, depth, price)


@compiled
def weigh_splice(state: State, row: int, depth: int, price: float) -> None:
    """The best length of a splice behind `depth` neural tokens, and what it is worth."""
    reached, survival = state.neural[row, depth], state.splice[row, depth]
    length, value = 0, 0.0
    for j in range(1, LONGEST_SPLICE + 1):
        if survival[j] <= 0 or reached * survival[j] < price:
            break
        length = j
        value += reached * survival[j] - price
    state.splice_len[row, depth], state.splice_value[row, depth] = length, value


@compiled
def _raise_to(survival: Array, depth: int, least: float) -> None:
    """Raise a curve to `least` at `depth`, what lies behind in proportion."""
    before = survival[depth]
    if least <= before:
        return
    for k in range(1, depth + 1):
        survival[k] = max(survival[k], least)
    scale = least / before if before > 0 else 0.0
    for k in range(depth + 1, LONGEST_NGRAM + 1):
        survival[k] *= scale


@compiled
def _lower_to(survival: Array, depth: int, most: float) -> None:
    """Lower a curve to `most` at `depth`, what lies behind in proportion."""
    before = survival[depth]
    if most >= before:
        return
    scale = most / before
    for k in range(depth, LONGEST_NGRAM + 1):
        survival[k] *= scale
