import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_model, random_network
from random_rows import TOKENS, random_rows, random_shown, random_table
from refusals import refusal

from adaspec.draft.matches import Matches
from adaspec.errors import PolicyError
from adaspec.predict.features import BEFORE_FEATURES, Known, Shown
from adaspec.predict.model import BEFORE_HEADS, model_from, predict_before, predict_behind
from adaspec.predict.network import PROBABILITY, network_from, predict

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


FEATURES, HEADS = len(BEFORE_FEATURES), len(BEFORE_HEADS)


def rows_of(random, count):
    """Features of every size and sign, zero and missing ones included."""
    x = random.normal(0, 1, (count, FEATURES)) * 10.0 ** random.integers(-4, 6, (count, FEATURES))
    x[random.random(x.shape) < 0.1] = 0.0
    x[random.random(x.shape) < 0.2] = np.nan
    return x.astype(np.float32)


def predict_by_definition(network, x):
    """The formula of the module's docstring, in float64."""
    x = x.astype(np.float64)
    missing, given = np.isnan(x), x[:, network.source]
    rise = np.clip((given[:, None, :] - network.low) * network.slope, 0, 1).sum(1)
    inputs = np.where(np.isnan(given), 0.0, (rise - network.shift) * network.scale)
    hidden = np.concatenate([inputs, missing[:, network.flagged]], axis=1)
    for weight, bias in ((network.weight_1, network.bias_1), (network.weight_2, network.bias_2)):
        total = hidden @ weight.astype(np.float64) + bias
        hidden = total / (1 + np.exp(-total))
    out = hidden @ network.weight_3.astype(np.float64) + network.bias_3
    return np.where(network.link == PROBABILITY, 1 / (1 + np.exp(-out)), out)


@pytest.mark.parametrize("width", [1, 3, 10, 64])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 1300])
def test_a_network_predicts_by_its_definition(width, rows):
    random = np.random.default_rng([width, rows])
    network, x = random_network("before", rows, width), rows_of(random, rows)
    again = network_from("before", network.arrays(), FEATURES, HEADS)
    stored, arrays = network.arrays(), again.arrays()
    assert all(np.array_equal(stored[name], arrays[name]) for name in stored)
    np.testing.assert_allclose(
        predict(network, x), predict_by_definition(network, x), rtol=2e-5, atol=2e-5
    )


def test_a_network_too_large_to_be_computed_is_refused():
    large = random_network("before", 11, 600).arrays()
    with pytest.raises(PolicyError, match="600 hidden units: at most 4096 and 1 to 512 can be"):
        network_from("before", large, FEATURES, HEADS)


DAMAGES = {
    "turned round": lambda a: np.flip(a).copy(),
    "cut": lambda a: a[1:],
    "one entry twice": lambda a: np.concatenate([a[:-1], a[-2:-1], a[-1:]]),
    "one entry for another": lambda a: np.concatenate([a[:-1], a[-2:-1]]),
    "one more dimension": lambda a: a[None],
    "negative": lambda a: -a,
    "negative at its end": lambda a: np.append(a.flat[:-1], -a.flat[-1:]).reshape(a.shape),
    "larger": lambda a: a + a.dtype.type(1),
    "zero": lambda a: a * a.dtype.type(0),
    "huge": lambda a: a * a.dtype.type(100),
    "no number": lambda a: np.full(a.shape, np.nan, np.result_type(a, np.float32)),
    "infinite": lambda a: a + np.float32(np.inf),
    "of another type": lambda a: a.astype(np.int32 if a.dtype.kind != "i" else np.int64),
    "objects": lambda a: a.astype(object),
}
SOURCES = ("neural", "ngram", "splice")
SOUND = {
    **{f"curve-{source}.edges": {"larger", "huge"} for source in SOURCES},
    **{f"curve-{source}.shapes": {"one entry for another"} for source in SOURCES},
    "keys": {"larger"},
    "means": {"turned round", "zero", "one entry for another"},
    "counts": {"turned round", "larger", "zero", "huge", "one entry for another"},
    "depths": {"turned round", "larger", "zero", "huge", "one entry for another"},
    "base": {"zero", "one entry for another"},
    "salt": {
        "turned round",
        "one entry twice",
        "negative at its end",
        "negative",
        "larger",
        "zero",
        "huge",
    },
}
"""What of a table or a curve may have been meant; any weight of a network may."""


def test_a_model_with_any_array_damaged_is_refused_or_predicts_and_one_that_lacks_it_is_refused():
    rng = np.random.default_rng(3)
    model = random_model(6, random_table(rng), evidence=True)
    rows = random_rows(rng, 3)
    shown, parts = random_shown(rng, rows), (model.network_arrays(), model.table_arrays())
    again = model_from(*parts)
    for before, after in zip(parts, (again.network_arrays(), again.table_arrays()), strict=True):
        assert before.keys() == after.keys()
        for name, array in before.items():
            np.testing.assert_array_equal(after[name], array)
    found = {}
    with np.errstate(all="ignore"):
        for name, array in (parts[0] | parts[1]).items():
            found[name] = set()
            for damage, harm in DAMAGES.items():
                damaged = [each | ({name: harm(array)} if name in each else {}) for each in parts]
                try:
                    made = model_from(*damaged)
                except PolicyError as error:
                    assert str(error).isprintable()
                else:
                    found[name].add(damage)
                    predicted(made, rows, shown)
            lacking = [{key: a for key, a in each.items() if key != name} for each in parts]
            refusal(PolicyError, model_from, *lacking)
    assert {name: kinds for name, kinds in found.items() if name in SOUND} == SOUND
    for name in ("curve-other.edges", "ear.heads", "loose", "before.more"):
        refusal(PolicyError, model_from, parts[0] | {name: np.zeros(1)}, parts[1])
    refusal(PolicyError, model_from, parts[0], parts[1] | {"more": np.zeros(1)})
