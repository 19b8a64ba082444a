"""Training on what a live policy logged: the recipe of dense traces, less of them known."""

import dataclasses

import numpy as np
import pytest
from logged_traffic import logged_steps, write_logged
from refusals import refusal
from synthetic import Workload, synthesize, write_synthetic
from tiny_training import TINY, train

from adaspec.errors import AdaspecError, TrainingError
from adaspec.policy.learned import load_policy
from adaspec.replay.logged import are_logged, log_of, logged_request, read_logged
from adaspec.replay.recording import build_recording
from adaspec.trace.reader import TraceReader
from adaspec.train.outcomes import Recorded, recorded_log

pytestmark = pytest.mark.slow

# One hit rate: the truth does not hang on which requests were drawn, nor on what was seen of them.
STEADY = Workload("steady", (30, 60), (150, 250), 0.2, 8.0, 0.0, 0.75, 0.75)
VARIED = {0: 0.2, 1: 0.3, 2: 0.2, 3: 0.1, 5: 0.1, 6: 0.1}
VOCABULARIES = [f"128-{digit * 16}" for digit in "ab"]


@pytest.fixture(scope="module")
def requests():
    return list(synthesize(0, (STEADY,), requests_per_workload=60))


def test_a_logged_row_is_a_dense_row_of_which_less_is_known(requests, tmp_path):
    folder = write_logged(tmp_path / "log", requests, VARIED, further=1)
    found, _ = read_logged([TraceReader(folder)], TrainingError)
    log = log_of(found)
    logged = recorded_log(log)
    dense = Recorded(build_recording([each.request for each in found], 0))
    everywhere = np.arange(len(dense.request))
    assert logged.recording.neural_cap == 7, "the longest drafts, and a token nobody verified"
    mine, whole = logged.copied(everywhere), dense.copied(everywhere)
    np.testing.assert_array_equal(mine.right, whole.right)
    np.testing.assert_array_equal(mine.known, whole.known)
    np.testing.assert_array_equal(logged.request, dense.request)
    # What is known of neural drafts agrees with the truth as far as it goes.
    truth = np.concatenate([each.neural_accepted for each in requests])
    mine = logged.neural(everywhere)
    np.testing.assert_array_equal(mine.right, np.minimum(truth, mine.known) * (mine.known > 0))
    assert set(np.flatnonzero(mine.known)) <= set(log.at.tolist())
    assert set(range(2, 8)) <= set(mine.known.tolist())


def test_a_logged_trace_trains_a_policy_whose_card_says_how_it_was_judged(requests, tmp_path):
    trace = write_logged(tmp_path / "log", requests, VARIED, vocabulary_hash=VOCABULARIES[0])
    assert are_logged([trace], TrainingError, "train on")
    product = train(trace, tmp_path / "mine")
    policy = load_policy(product.folder)
    assert policy.neural_cap == 6
    assert policy.manifest.sources == ("ngram", "neural", "splice")
    assert policy.manifest.forwards == {}
    assert policy.manifest.vocabulary_hash == VOCABULARIES[0]
    card = (product.folder / "CARD.md").read_text()
    assert "logged traces alone" in card
    assert "speedup" not in card
    curve = policy.manifest.metrics["held_out"]["calibration"]["sources"]["neural"]
    for depth, entry in enumerate(curve, 1):
        assert entry["came"] == pytest.approx(STEADY.easy_hit**depth, abs=0.06)
        # So few examples per bin say no better: the truth is the same everywhere.
        assert entry["ece"] < 0.12


def test_a_log_without_neural_drafts_trains_an_ngram_only_policy(requests, tmp_path):
    trace = write_logged(tmp_path / "log", requests, {0: 1.0})
    found = train(trace, tmp_path / "mine")
    assert found.manifest.sources == ("ngram",)
    assert found.manifest.drafter is None
    assert "n-gram only" in (tmp_path / "mine" / "CARD.md").read_text()


def test_what_logs_cannot_identify_is_refused_in_one_line(requests, tmp_path):
    blind = write_logged(tmp_path / "blind", requests[:20], VARIED, text=False)
    rare = write_logged(tmp_path / "rare", requests[:20], {0: 0.997, 1: 0.003})
    few = write_logged(tmp_path / "few", requests[:4], VARIED)
    one, two = (
        write_logged(tmp_path / digest[-1], some, VARIED, vocabulary_hash=digest)
        for digest, some in zip(VOCABULARIES, (requests[:10], requests[10:20]), strict=True)
    )
    for trace, more, said in (
        (blind, [], "20 without their text"),
        (rare, [], "neural drafts were verified at"),
        (few, [], "too few requests"),
        (one, [two], "differ in their vocabulary"),
    ):
        assert said in refusal(AdaspecError, train, trace, tmp_path / "mine", more_traces=more)
        assert not (tmp_path / "mine").exists()
    write_synthetic(tmp_path / "dense", 0, TINY, requests_per_workload=2)
    with pytest.raises(TrainingError, match="train on one kind"):
        are_logged([few, tmp_path / "dense"], TrainingError, "train on")


def test_steps_of_mode_shadow_are_told_from_a_text_that_does_not_fit(requests):
    steps = list(logged_steps(requests[0], {3: 1.0}, np.random.default_rng(0)))
    assert not isinstance(logged_request(steps), str)
    head = steps[0]
    shadow = [
        dataclasses.replace(head, step=at, position=1 + at, accepted=min(at, 1)) for at in range(5)
    ]
    assert logged_request(shadow) == "of mode shadow, in which no decision is carried out"
    twice = [head, dataclasses.replace(head, step=1)]
    assert logged_request(twice) == "whose steps contradict their text"
