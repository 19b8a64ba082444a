"""A served policy says where much less comes of its drafts than it expected."""

from random_models import random_model
from session_fakes import no_tables

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Setup
from adaspec.vllm.drift import PERIOD, Drift
from adaspec.vllm.events import Observers
from adaspec.vllm.metrics import Counters, MetricsObserver

CAP, NEURAL_CAP, COST = 12, 5, H100_LLAMA_3_1_8B


def test_a_source_of_which_little_comes_is_counted_and_logged_once(caplog):
    policy = LearnedPolicy("p", random_model(3, no_tables(), evidence=True), CAP, NEURAL_CAP)
    policy.start(Setup(COST, CAP, NEURAL_CAP, 3, True, True))
    record = policy.planner.state.record
    record["expected"], record["accepted"] = [100.0, 300.0, 300.0], [0.0, 150.0, 290.0]
    counters, observers = Counters(None, {}), Observers()
    observers.add(MetricsObserver(counters))
    drift = Drift(policy, observers)
    for _ in range(3 * PERIOD):
        drift.step()
    shown = [counters[f"accepted_over_expected/{each}"] for each in ("ngram", "neural", "splice")]
    assert shown == [0.0, 0.5, 290 / 300]  # of the first too little is known
    assert [each.getMessage() for each in caplog.records] == [
        "adaspec: of the tokens that the policy lately expected of neural drafts, 50% were "
        "accepted: traffic or drafter are not as in training, train it again; plans expect that "
        "much less meanwhile"
    ]
