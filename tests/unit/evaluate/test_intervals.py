"""Whether intervals keep their promise, on populations whose truth is known."""

import json
import math

import numpy as np
import pytest
from checkout import CHECKOUT, need, run_python
from synthetic import Workload, synthesize, write_synthetic

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.evaluate import intervals
from adaspec.evaluate.intervals import interval, replicate_speeds, variance_ratio
from adaspec.evaluate.options import Options, silent
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording

SHORT = Workload("short", (20, 50), (16, 48), 0.5, 12.0, 0.3, 0.8, 0.3)
SPECS = ("none", "fixed:neural:3", "hybrid-splice:3:12:3:2:5", "fixed:ngram:5:2", "oracle:combine")


@pytest.mark.thorough
@pytest.mark.parametrize("size", [80, 400], ids=["all-enter", "some-enter"])
def test_95_percent_intervals_cover_the_truth_in_90_to_99_percent_of_samples(tmp_path, size):
    """160 requests enter an order: each of 80 twice, and 160 of 400."""
    need("eval")
    write_synthetic(tmp_path / "trace", 0, (SHORT,), requests_per_workload=4000)
    words = ["--requests", size, "--concurrency", 8, "-o", tmp_path]
    run_python(CHECKOUT / "eval" / "interval_coverage.py", tmp_path / "trace", *words)
    for row in json.loads((tmp_path / "report.json").read_text())["rows"]:
        assert 0.90 <= row["held"] <= 0.99, row


@pytest.mark.parametrize("prefill", [False, True], ids=["decoding", "prefill"])
def test_one_at_a_time_replicates_are_those_of_replaying_every_order(monkeypatch, prefill):
    recording = build_recording(list(synthesize(0, (SHORT,), 30)), 8)
    if prefill:
        recording = recording.with_prefill()
    player = Player(recording, H100_LLAMA_3_1_8B, 48)
    named = {(None, 1): [parse_contender(spec) for spec in (*SPECS, "oracle:plan", "budget:4")]}
    options = Options(concurrency=(1,), resamples=6, jobs=1)
    summed = replicate_speeds(player, named, options, silent)[None, 1]
    monkeypatch.setattr(intervals, "seconds_alone", lambda *_: [None] * len(named[None, 1]))
    replayed = replicate_speeds(player, named, options, silent)[None, 1]
    np.testing.assert_allclose(summed[:, : len(SPECS)], replayed[:, : len(SPECS)], rtol=1e-9)
    # What adapts to what came before differs a little.
    np.testing.assert_allclose(summed, replayed, rtol=0.02)
    assert np.ptp(replayed, axis=0).min() > 0


def test_an_interval_is_centred_on_the_point_and_follows_students_t():
    low, high = interval(2.0, np.array([1.0, 3.0]), 0.25)
    # t of 1 degree of freedom at 97.5% is 12.706; the deviation sqrt(2) is halved.
    assert (low + high) / 2 == pytest.approx(2.0)
    assert high - 2.0 == pytest.approx(12.7062 * math.sqrt(2) / 2, rel=1e-5)


@pytest.mark.parametrize("size", [7, 160, 400])
@pytest.mark.parametrize("orders", [1, 3])
def test_the_variance_ratio_is_that_of_a_mean_over_entries(size, orders):
    """Against simulation: the statistic is the mean of a number that each request carries."""
    rng = np.random.default_rng(size)
    trials = 2000
    points, replicates = [], []
    for _ in range(trials):
        values = rng.standard_normal(size)
        pool = np.arange(size, dtype=np.int32)
        points.append(np.mean([values[entry_draw(size, rng)].mean() for _ in range(orders)]))
        again = values[rng.choice(pool, size)]
        # Conditional on the sample, hence without the mean of the sample itself.
        replicates.append(again[entry_draw(size, rng)].mean() - values.mean())
    found = np.var(points) / np.var(replicates)
    assert found == pytest.approx(variance_ratio([size], 1, orders), rel=0.12)
    # A mix is as wide as its widest workload.
    assert variance_ratio([size, 5000], 1, orders) == variance_ratio([size], 1, orders)


def entry_draw(size, rng):
    """The requests that enter one order of a workload of that size, slowly and obviously."""
    drawn = []
    while len(drawn) < 160:
        drawn += rng.permutation(size).tolist()
    return drawn[:160]
