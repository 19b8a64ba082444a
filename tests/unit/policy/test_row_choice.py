import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_model

from adaspec.policy import choice
from adaspec.policy.budget import NEURAL, NGRAM, PRICE, SPLICE, no_settings
from adaspec.predict.model import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE, PREDICTION

CAP = 6
MODEL = random_model(0, evidence=True)
SHAPES = choice.shapes_of(MODEL)
SEEDS = st.integers(0, 1 << 32)


def random_prediction(rng):
    said = np.zeros(1, PREDICTION)
    for name in ("ngram_first", "neural_first", "accepted_next", "ngram_after", "splice_first"):
        said[name] = rng.random(said[name].shape)
    said["splice_available"] = rng.integers(0, 20, LONGEST_NEURAL)
    said["ngram_shape"] = rng.integers(len(SHAPES.ngram))
    said["neural_shape"] = rng.integers(len(SHAPES.neural))
    said["splice_shape"] = rng.integers(0, len(SHAPES.splice), LONGEST_NEURAL)
    return said[0]


def filled(said, forwards, holds=True, known=LONGEST_NEURAL):
    row, curves = np.zeros(1, choice.ROW), choice.new_curves()
    row["holds_neural"] = holds
    curves.splice[:] = 9.0  # what a step before has left
    choice.fill_curves(row[0], said, SHAPES, forwards, known, CAP, curves)
    return curves


def survival(curves, neural, copied):
    """Of each token of a draft, P(it and all before it are accepted)."""
    if not neural:
        return curves.ngram[1 : copied + 1]
    spliced = curves.neural[neural] * curves.splice[neural, 1 : copied + 1]
    return np.concatenate([curves.neural[1 : neural + 1], spliced])


def drafts(row, curves, forwards):
    found = [(0, copied) for copied in range(min(int(row["available"]), CAP) + 1)]
    for neural in range(1, min(forwards, CAP) + 1):
        behind = int((curves.splice[neural, 1:] > 0).sum())
        found += [(neural, copied) for copied in range(min(behind, CAP - neural) + 1)]
    return found


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.integers(0, 4), st.floats(0.01, 0.9))
def test_a_row_takes_the_draft_that_is_worth_most_and_goes_on_as_far_as_its_source_does(
    seed, forwards, price
):
    rng, row = np.random.default_rng(seed), np.zeros(1, choice.ROW)[0]
    row["available"] = rng.integers(0, CAP + 2)
    curves = filled(random_prediction(rng), forwards + rng.integers(2), rng.random() < 0.8)

    def best_of(some):
        return max(float((survival(curves, *draft) - price).sum()) for draft in some)

    choice.best_draft(row, curves, 0.0, forwards, LONGEST_NEURAL, price, CAP)
    before = int(row["neural"]), int(row["copied"])
    assert best_of([before]) == pytest.approx(best_of(drafts(row, curves, forwards)), abs=1e-12)
    counts = 0, max(forwards - 1, 0), forwards, forwards + 1
    none, fewer, ran, more = (best_of(drafts(row, curves, count)) for count in counts)
    np.testing.assert_allclose(row["gain"], [ran - fewer, more - ran, ran - none], atol=1e-12)
    choice.extend(row, curves, CAP)
    neural, copied = int(row["neural"]), int(row["copied"])
    assert neural == before[0]
    assert before[1] <= copied <= CAP - neural
    source = curves.splice[neural, 1:] if neural else curves.ngram[1 : int(row["available"]) + 1]
    assert copied == min((source > 0).sum(), CAP - neural)


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.integers(1, 4))
def test_a_drafted_token_says_how_likely_it_is_and_what_lies_behind_moves_in_proportion(seed, seen):
    said = random_prediction(np.random.default_rng(seed))
    before, after = filled(said, seen - 1), filled(said, seen)
    neural, was = after.neural, before.neural
    np.testing.assert_array_equal(neural[1:seen], was[1:seen])
    reached = neural[seen - 1] if seen > 1 else 1.0
    assert neural[seen] == pytest.approx(reached * said["accepted_next"][seen - 1])
    np.testing.assert_allclose(neural[seen:] * was[seen], was[seen:] * neural[seen])
    copy, was = after.ngram, before.ngram
    assert copy[1] == pytest.approx(said["ngram_after"][seen - 1])
    np.testing.assert_allclose(copy[1:] * was[1], was[1:] * copy[1], atol=1e-12)
    room = min(said["splice_available"][seen - 1], CAP - seen)
    shape = SHAPES.splice[said["splice_shape"][seen - 1]]
    wanted = said["splice_first"][seen - 1] * shape * (np.arange(LONGEST_SPLICE + 1) <= room)
    np.testing.assert_allclose(after.splice[seen, 1:], wanted[1:])
    if seen > 1:  # a copy behind the token before is right only where this one is wrong
        wrong = 1 - said["accepted_next"][seen - 1]
        np.testing.assert_allclose(after.splice[seen - 1, 1:], before.splice[seen - 1, 1:] * wrong)
    assert not after.splice[seen + 1 :, 1].any()
    # Where the match became known only with the length, no token behind it was compared.
    unread = filled(said, seen, known=0).splice[seen - 1 : seen, 1:]
    if seen > 1:
        np.testing.assert_array_equal(unread, before.splice[seen - 1 : seen, 1:])
    without = filled(said, seen, holds=False)
    assert not without.neural[1:].any()
    assert not without.splice[1:, 1].any()
    np.testing.assert_allclose(without.ngram[1], said["ngram_first"])


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(0, 3), st.booleans(), st.floats(0.0, 1.2))
def test_a_draft_carries_the_corrected_survival_of_each_token(seed, forwards, reads_drafts, price):
    rng, chosen = np.random.default_rng(seed), no_settings()
    factors = rng.uniform(0.3, 1.15, 3)
    chosen[PRICE], chosen[[NGRAM, NEURAL, SPLICE]] = price, factors
    predictions = np.array([random_prediction(rng) for _ in range(4)])
    rows, table = np.zeros(4, choice.ROW), np.zeros((4, LONGEST_NGRAM))
    rows["prediction"], rows["holds_neural"] = rng.permutation(4), rng.random(4) < 0.7
    rows["available"] = rng.integers(0, 9, 4)
    choice.draft_rows(rows, predictions, SHAPES, chosen, forwards, CAP, table, reads_drafts)
    for at, row in enumerate(rows):
        known = forwards if reads_drafts else 0
        said, holds = predictions[row["prediction"]], bool(row["holds_neural"])
        curves = filled(said, forwards, holds, known)
        for source, factor in zip(("ngram", "neural", "splice"), factors, strict=True):
            for curve in np.atleast_2d(getattr(curves, source)):
                curve[1:] *= min(factor, 1 / max(curve[1], 1e-9))  # no further than to certainty
        length = row["neural"] + row["copied"]
        assert length <= CAP
        found = table[at, :length]
        np.testing.assert_allclose(found, survival(curves, row["neural"], row["copied"]))
        assert (np.diff(found) <= 1e-9).all()
        assert not table[at, length:].any()
        if row["available"] > 0 and said["ngram_first"] > 0:
            assert length > 0, "at any price a row drafts what it can"
