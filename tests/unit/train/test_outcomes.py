from types import SimpleNamespace

import numpy as np
import pytest

from adaspec.predict.features import BEFORE_FEATURES
from adaspec.predict.model import LONGEST_NGRAM
from adaspec.predict.network import survivals
from adaspec.train.heads import HeadMaker, Settings
from adaspec.train.recipe import BINS, judge
from adaspec.train.rows import Outcomes, Recorded, expected_log, fit_curves

LONGEST = 8


def drafts(count, hit, seed, tried=None):
    """Drafts whose tokens are right with a chance each, known as far as they were tried."""
    rng = np.random.default_rng(seed)
    right = np.minimum(rng.geometric(1 - hit, count) - 1, LONGEST)
    known = np.full(count, LONGEST) if tried is None else rng.choice(tried, count)
    return Outcomes(np.minimum(right, known).astype(np.int32), known.astype(np.int32))


@pytest.mark.parametrize("seed", range(10))
def test_where_all_is_known_a_curve_is_the_share_of_its_scores_own_bin(seed):
    rng = np.random.default_rng(seed)
    scores = rng.choice([rng.random(400), rng.integers(0, 4, 400) / 4])
    right = (1 + rng.poisson(1 + 4 * scores)).astype(np.int32)
    curves = fit_curves(scores, Outcomes(right, np.full(400, 99, np.int32)), LONGEST, 10)
    pooled = np.array([np.mean(right >= j) for j in range(LONGEST + 1)])
    for score in [-1.0, *scores[:60], 2.0]:
        (out,) = survivals(curves, np.array([0.7]), np.array([score]), 11)
        low = max((edge for edge in curves.edges if edge <= score), default=-np.inf)
        high = min((edge for edge in curves.edges if edge > score), default=np.inf)
        mine = right[(scores >= low) & (scores < high)]
        shares = [np.sum(mine >= j) for j in range(LONGEST + 1)]
        expected = (np.array(shares) + 30 * pooled) / (len(mine) + 30)
        np.testing.assert_allclose(out[:8], 0.7 * expected[1:], rtol=1e-9)
        assert (np.diff(out) <= 1e-12).all()
        assert (out[8:] == 0).all()


def test_survival_is_recovered_from_drafts_that_were_mostly_cut_short():
    cut = drafts(60_000, 0.8, 0, tried=[1, 2, 3, 8])
    some = cut.right >= 1
    outcomes = cut.chosen(some)
    curves = fit_curves(np.zeros(some.sum()), outcomes, LONGEST, 5)
    np.testing.assert_allclose(curves.shapes[-1, 1:], 0.8 ** np.arange(8), atol=0.02)
    # What is expected of a draft that was cut short is what others brought that went so far.
    whole = drafts(60_000, 0.8, 1)
    logs = expected_log(outcomes, LONGEST)
    truth = expected_log(whole.chosen(whole.right >= 1), LONGEST)
    assert logs.mean() == pytest.approx(truth.mean(), abs=0.02)
    ended = outcomes.right < outcomes.known
    np.testing.assert_array_equal(logs[ended], np.log1p(outcomes.right[ended]))
    assert np.log1p(cut.right[some]).mean() < truth.mean() - 0.2


def test_nothing_is_expected_behind_the_last_token_that_was_ever_tried():
    shallow = drafts(2_000, 0.8, 0, tried=[1, 2, 3])
    curves = fit_curves(np.zeros(2_000), shallow, LONGEST, 5)
    assert (curves.shapes[:, 4:] == 0).all()
    assert (curves.shapes[:, 3] > 0.5).all()
    assert expected_log(shallow, LONGEST).max() == np.log1p(3)
    none = fit_curves(np.empty(0), shallow.chosen(np.zeros(2_000, np.bool_)), LONGEST, 5)
    assert none.shapes.tolist() == [[1, 1] + [0] * 7]


def recorded(length, cut_off):
    """Requests of that length in which all that follows is copied, each cut off or not."""
    count = len(cut_off)
    at = np.arange(count * length)
    columns = SimpleNamespace(
        offset=np.arange(count + 1) * length,
        length=np.full(count, length),
        neural=np.full(count * length, -1),
        run=length - at % length,
        match=np.ones(count * length),
    )
    requests = [SimpleNamespace(is_cut_off=each) for each in cut_off]
    return Recorded(SimpleNamespace(columns=columns, requests=requests, neural_cap=0))


def longest_copies(length, cut_off):
    outcomes = recorded(length, [cut_off] * 40)
    at = np.flatnonzero(np.arange(len(outcomes.request)) % length)
    x = np.zeros((len(at), len(BEFORE_FEATURES)), np.float32)
    x[:, BEFORE_FEATURES.index("position")] = at % length
    maker = HeadMaker("before", Settings(threads=1, rounds=40))
    heads, _ = maker.source("ngram", x, outcomes.copied(at), outcomes.request[at])
    return np.expm1(heads["ngram_more"].predict(x[: length - 1]))


def test_copies_end_where_outputs_do_and_not_where_a_limit_cut_them_off():
    assert longest_copies(200, cut_off=True) == pytest.approx(LONGEST_NGRAM, rel=0.01)
    ended = longest_copies(200, cut_off=False)
    assert ended[:100] == pytest.approx(LONGEST_NGRAM, rel=0.05)
    assert ended[-1] < 10
    # Outputs shorter than the longest draft still teach.
    assert longest_copies(LONGEST_NGRAM - 8, cut_off=True)[0] > 20


def test_figures_are_those_of_their_definitions():
    rng = np.random.default_rng(3)
    predicted = rng.random(600).round(1)  # with ties
    came = (rng.random(600) < predicted).astype(float)
    found = judge(came, predicted)
    by_size = np.argsort(predicted, kind="stable").reshape(BINS, -1)
    gaps = abs(predicted[by_size].mean(1) - came[by_size].mean(1))
    assert found["ece"] == pytest.approx(gaps.mean(), abs=1e-6)
    above = predicted[came == 1][:, None] - predicted[came == 0]
    assert found["auc"] == pytest.approx(np.mean((above > 0) + 0.5 * (above == 0)), abs=1e-6)
    assert (found["positions"], found["came"]) == (600, pytest.approx(came.mean(), abs=1e-6))
    assert judge(came, predicted**4)["ece"] > 2 * found["ece"]


def test_equal_outcomes_have_no_area_and_certain_misses_a_finite_loss():
    assert judge(np.ones(5), np.linspace(0.1, 0.9, 5))["auc"] is None
    losses = [judge(np.array([1.0, 0.0]), np.array(p))["log_loss"] for p in ((0.5, 0.5), (0, 1))]
    assert losses == pytest.approx([np.log(2), -np.log(1e-6)], abs=1e-6)
