"""Step after step, the device computes what the host's compiled code does."""

from __future__ import annotations

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
from adaspec.policy.planner.memory import NEURAL_EXPONENT, NGRAM_EXPONENT
from adaspec.policy.protocol import Setup
from adaspec.replay.loop import run_policy
from adaspec.replay.recording import build_recording
from adaspec.train.token_tables import TableMaker

torch = pytest.importorskip("torch", reason="torch is not installed")

from twin import Twin  # noqa: E402

from adaspec.device.model import DeviceModel  # noqa: E402
from adaspec.device.predictor import Predictor  # noqa: E402

pytestmark = pytest.mark.slow


def make_predictor(policy: LearnedPolicy, setup: Setup) -> Predictor:
    model = DeviceModel(policy.model, torch.device("cpu"))
    return Predictor(model, policy.knobs, min(policy.cap, setup.cap))


@pytest.mark.parametrize("kind", ["tokens", "confidences"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), evidence=st.booleans())
def test_every_step_of_a_random_run_is_the_hosts(kind: str, seed: int, evidence: bool) -> None:
    rng = np.random.default_rng(seed)
    recording = random_recording(seed % 1000, kind)
    policy = random_policy(
        rng,
        TableMaker(recording, 0).make(np.ones(len(recording), np.bool_)),
        evidence=evidence,
        cap=int(rng.choice([2, 6, 48])),
        neural_cap=int(rng.choice([1, 3, 5, 8])),
    )
    # A root of a probability near 0 would magnify the last bits of the host's float32.
    exponents = [NGRAM_EXPONENT, NEURAL_EXPONENT]
    policy.knobs[exponents] = np.maximum(policy.knobs[exponents], 1.0)
    order = rng.integers(0, len(recording), 14).astype(np.int32)
    cost = random_cost(rng)
    concurrency, cap = int(rng.integers(1, 6)), int(rng.choice([1, 2, 4, 9, 30]))
    twin = Twin(policy, make_predictor)
    run_policy(recording, twin, order, concurrency, cost, cap)
    assert twin.rows > 0


def test_every_step_of_recorded_requests_is_the_hosts() -> None:
    requests = recorded_requests(24)
    recording = build_recording(requests, 8)
    policy = load_policy("reference-pair-cpu")
    cost = load_cost("h100-llama-3.1-8b")
    order = np.arange(len(requests), dtype=np.int32)
    twin = Twin(policy, make_predictor)
    run_policy(recording, twin, order, 12, cost, 48)
    assert twin.rows > 800
    # A draft may be worth as much as another, or nothing, up to the last bits.
    assert twin.other_choices <= twin.choices // 1000
