"""Step after step, the device computes what the host's compiled code does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_recordings import random_recording
from random_models import random_policy
from random_recordings import random_cost
from recorded_states import recorded_requests

from adaspec.cost.load import load_cost
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.protocol import Setup
from adaspec.predict.forest import Forest, predict
from adaspec.replay.loop import run_policy
from adaspec.replay.recording import build_recording
from adaspec.train.token_tables import TableMaker

torch = pytest.importorskip("torch", reason="torch is not installed")

from random_networks import random_device_model  # noqa: E402
from twin import Twin  # noqa: E402

from adaspec.device.predictor import Predictor  # noqa: E402

pytestmark = pytest.mark.slow


class ForestOnHost:
    """A forest in place of a network."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(predict(self._forest, features.numpy()))


def make_predictor(policy: LearnedPolicy, setup: Setup) -> Predictor:
    reads_drafts = policy.model.reads_evidence and setup.shows_tokens
    model = random_device_model(policy.model, torch.device("cpu"))
    forests = {name: ForestOnHost(forest) for name, forest in policy.model.forests.items()}
    model.before, model.splice = forests["before"], forests["splice"]
    model.evidence = forests["evidence"] if reads_drafts else None
    return Predictor(model, policy.knobs, setup.slots, min(policy.cap, setup.cap))


@pytest.mark.parametrize("kind", ["tokens", "confidences"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), refills=st.booleans(), evidence=st.booleans())
def test_every_step_of_a_random_run_is_the_hosts(
    kind: str, seed: int, refills: bool, evidence: bool
) -> None:
    rng = np.random.default_rng(seed)
    recording = random_recording(seed % 1000, kind)
    policy = random_policy(
        rng,
        TableMaker(recording, 0).make(np.ones(len(recording), np.bool_)),
        evidence=evidence,
        cap=int(rng.choice([2, 6, 48])),
        neural_cap=int(rng.choice([1, 3, 5, 8])),
    )
    order = rng.integers(0, len(recording), 14).astype(np.int32)
    # Where steps are padded to captured sizes, the host looks for a price of its own.
    cost = replace(random_cost(rng), captured_sizes=())
    concurrency, cap = int(rng.integers(1, 6)), int(rng.choice([1, 2, 4, 9, 30]))
    twin = Twin(policy, make_predictor)
    run_policy(recording, twin, order, concurrency, cost, cap, refills)
    assert twin.rows > 0
    assert (twin.other_choices, twin.other_budgets) == (0, 0)


def test_every_step_of_recorded_requests_is_the_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    requests = recorded_requests(96)
    policy = load_policy("reference-pair-cpu")
    recording = build_recording(requests, policy.neural_cap)
    cost = replace(load_cost("h100-llama-3.1-8b"), captured_sizes=())
    order = np.arange(len(requests), dtype=np.int32)
    twin = Twin(policy, make_predictor)
    run_policy(recording, twin, order, 24, cost, 48)
    assert twin.rows > 3000
    # A draft that is worth as much may be chosen in its place, or a budget just be kept or missed.
    assert twin.other_choices <= twin.choices // 1000
    assert twin.other_budgets <= twin.budgets // 100
    with capsys.disabled():
        print(f"\n{twin.rows} recorded states; the largest differences between host and device:")
        for name, largest in twin.largest.items():
            print(f"    {name}: {largest:.1e}")
        print(f"    {twin.other_choices} of {twin.choices} choices, as good")
        print(f"    {twin.other_budgets} of {twin.budgets} budgets")
