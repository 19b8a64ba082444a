"""A prediction is a fact of its row, by the tokens that were drafted so far."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_model
from random_rows import TOKENS, random_rows, random_shown, random_table

from adaspec.draft.matches import Matches
from adaspec.predict.features import Known, Shown
from adaspec.predict.model import predict_before, predict_behind

SEEDS = st.integers(0, 1 << 32)


def some(rows, shown, chosen, tokens=TOKENS):
    """These rows alone, and so many of their drafted tokens."""

    def of(match, *place):
        return Matches(*(getattr(match, name)[place] for name in Matches.__slots__))

    first = (chosen, slice(tokens))
    return (
        rows._replace(
            match=of(rows.match, chosen),
            **{name: getattr(rows, name)[chosen] for name in Known._fields if name != "match"},
        ),
        shown._replace(
            match=of(shown.match, *first),
            **{name: getattr(shown, name)[first] for name in Shown._fields if name != "match"},
        ),
    )


def predicted(model, rows, shown, reads_drafts=True):
    out, _ = predict_before(model, rows)
    predict_behind(model, out, rows, shown, reads_drafts)
    return out


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.booleans(), st.integers(0, TOKENS))
def test_what_is_predicted_hangs_on_no_other_row_and_no_later_token(seed, reads_drafts, tokens):
    rng = np.random.default_rng(seed)
    model, rows = random_model(seed, random_table(rng), evidence=True), random_rows(rng, 70)
    shown = random_shown(rng, rows)
    together = predicted(model, rows, shown, reads_drafts)
    for at in (0, 33, 69):  # rows go through networks in blocks of 64
        (alone,) = predicted(model, *some(rows, shown, slice(at, at + 1), tokens), reads_drafts)
        for name in alone.dtype.names:
            ours, theirs = (np.atleast_1d(each[name]) for each in (alone, together[at]))
            so_far = tokens if ours.size > 1 else None
            np.testing.assert_allclose(ours[:so_far], theirs[:so_far], rtol=1e-4, err_msg=name)
    assert (together["accepted_next"] <= 1).all() and (together["ngram_after"] >= 0).all()


def test_what_was_not_drafted_is_not_accepted_and_who_has_no_match_copies_nothing():
    rng = np.random.default_rng(5)
    model, rows = random_model(5, evidence=True), random_rows(rng, 40)
    shown = random_shown(rng, rows)
    out = predicted(model, rows, shown)
    assert not out["accepted_next"][:, :TOKENS][shown.tokens < 0].any()
    lacks_match = rows.match.length == 0
    assert lacks_match.any() and not out["ngram_first"][lacks_match].any()
    assert not out["ngram_after"][lacks_match].any()
    assert not out["splice_available"][:, :TOKENS][shown.match.length == 0].any()


def test_where_drafts_are_not_read_the_drafter_is_as_good_as_was_predicted_before():
    rng = np.random.default_rng(6)
    model, rows = random_model(6, evidence=True), random_rows(rng, 40)
    shown = random_shown(rng, rows)
    before, _ = predict_before(model, rows)
    out = predicted(model, rows, shown, reads_drafts=False)
    np.testing.assert_array_equal(out["accepted_next"], before["accepted_next"])
    np.testing.assert_array_equal(out["ngram_after"], before["ngram_after"])
    shapes = model.curves["neural"].up_to(8)[out["neural_shape"]]
    reached = np.multiply.accumulate(out["accepted_next"].astype(float), axis=1)
    assert reached == pytest.approx(out["neural_first"][:, None] * shapes[:, 1:], rel=1e-5)
    # Nobody knows which token would be copied, and so it tells nothing.
    other = shown._replace(copied=np.full_like(shown.copied, 3))
    np.testing.assert_array_equal(out, predicted(model, rows, other, reads_drafts=False))
