"""What steps lost, against exhaustive search and the cheapest path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_recordings import random_cost, random_requests, recording_of, static_specs
from reference import Request
from wild_policy import WildPolicy

from adaspec.cost.model import CostModel
from adaspec.policy.protocol import Policy
from adaspec.policy.spec import parse_policy
from adaspec.replay.loop import SeenStep, run_policy
from adaspec.replay.losses import (
    IN_VAIN,
    LEAST,
    PARTS,
    TOO_LONG,
    TOO_SHORT,
    WRONG_SOURCE,
    add_losses,
    hindsight,
)
from adaspec.replay.oracles import cheapest_s
from adaspec.replay.recording import Recording

SEEDS = st.integers(0, 2**32 - 1)


def watched(
    recording: Recording, policy: Policy, order: list[int], load: int, cost: CostModel, cap: int
) -> tuple[np.ndarray, float, float]:
    """The sums over a run's steps, the seconds of those steps, and all of the run."""
    best = hindsight(recording, load, cost, cap)
    sums, held, steps = np.zeros(len(PARTS) + 1), np.full(len(order), -1), []

    def observe(seen: SeenStep) -> None:
        step = seen.step
        assert step.cut is not None and step.shape is not None
        add_losses(
            recording.columns,
            best,
            seen.request,
            seen.position,
            step.holds_neural,
            held[seen.entry],
            step.cut.neural_len,
            step.cut.ngram_len,
            seen.verified.accepted,
            step.shape.forwards,
            cost.constants(),
            sums,
        )
        held[seen.entry] = step.holds_neural
        steps.append(seen.step_s)

    result = run_policy(
        recording, policy, np.array(order, np.int32), load, cost, cap, observer=observe
    )
    return sums, sum(steps), result.time_s


@settings(max_examples=60, deadline=None)
@given(SEEDS, static_specs(tokens=True), st.integers(1, 9), st.booleans())
def test_the_parts_and_the_least_add_up_to_the_time_of_one_request(
    seed: int, spec: str, cap: int, tokens: bool
) -> None:
    if spec.startswith("hybrid-agree") and not tokens:
        spec = "hybrid:2:5:2"
    recording = recording_of(random_requests(seed, 2, tokens=tokens))
    cost = replace(random_cost(np.random.default_rng(seed)).without_deciding(), captured_sizes=())
    for request in range(2):
        sums, _, time_s = watched(recording, parse_policy(spec), [request], 1, cost, cap)
        least_s = sum(cheapest_s(recording, request, 1, cost, cap, splices=True))
        assert sums[LEAST] == pytest.approx(least_s)
        assert sums.sum() == pytest.approx(time_s)


@settings(max_examples=60, deadline=None)
@given(SEEDS, static_specs(tokens=True), st.integers(1, 3))
def test_in_a_batch_they_add_up_to_the_time_of_its_steps(seed: int, spec: str, load: int) -> None:
    recording = recording_of(random_requests(seed, 5, tokens=True))
    cost = replace(random_cost(np.random.default_rng(seed)).without_deciding(), captured_sizes=())
    sums, steps_s, _ = watched(recording, parse_policy(spec), [0, 1, 2, 3, 4], load, cost, 9)
    assert sums.sum() == pytest.approx(steps_s)
    if not spec.startswith("fixed:ngram-vllm"):  # that copies from other places than the index
        assert (sums >= -1e-9).all()


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.booleans())
def test_they_add_up_however_wild_the_choices(seed: int, tokens: bool) -> None:
    recording = recording_of(random_requests(seed, 2, tokens=tokens))
    cost = replace(random_cost(np.random.default_rng(seed)).without_deciding(), captured_sizes=())
    for request in range(2):
        sums, _, time_s = watched(recording, WildPolicy(seed), [request], 1, cost, 9)
        assert sums.sum() == pytest.approx(time_s)


COST = CostModel("plain", fixed_s=1.0, per_token_s=0.1, draft_fixed_s=0.2, keep_alive_forwards=0)


def lost(spec: str, prompt: list[int], output: list[int], neural: list[int]) -> dict[str, float]:
    """What a rule lost on a request with these accepted counts of the neural drafter."""
    recording = recording_of([Request(prompt, output, neural, None)])
    sums, _, _ = watched(recording, parse_policy(spec), [0], 1, COST, 20)
    return dict(zip(PARTS, sums, strict=False))


def test_each_cause_is_told_from_the_others() -> None:
    output = [1, 2, 3, 4, 5]
    # Nothing to copy, and the drafter is never right: three tokens and forwards a step in vain.
    nothing = lost("fixed:neural:3", [9], output, [0, 0, 0, 0, 0])
    assert nothing["too_long"] == pytest.approx(4 * 3 * 0.1)
    assert nothing["in_vain"] == pytest.approx(4 * 3 * 0.2)
    assert nothing["too_short"] == nothing["wrong_source"] == 0
    # The drafter would be right to the end, and one forward a step is run.
    short = lost("fixed:neural:1", [9], output, [0, 3, 2, 1, 0])
    assert short["too_short"] > 0
    assert short["too_long"] == short["in_vain"] == short["wrong_source"] == 0
    # All could be copied, and nothing is drafted: that is too short, too.
    copied = lost("none", [1, 2, 3, 4, 5], output, [0, 0, 0, 0, 0])
    assert copied["too_short"] == pytest.approx(3 * 1.0)
    assert copied["too_long"] == copied["in_vain"] == copied["wrong_source"] == 0
    # Only the drafter could help, and the request went without it.
    assert lost("none", [9], output, [0, 3, 2, 1, 0])["wrong_source"] > 0
    # All could be copied, and the drafter is run instead: one forward, and then a splice, would do.
    source = lost("fixed:neural:3", [1, 2, 3, 4, 5], output, [0, 3, 2, 1, 0])
    assert source["wrong_source"] == pytest.approx(0.2)
    assert source["in_vain"] == pytest.approx(2 * 0.2)
    assert source["too_long"] == source["too_short"] == 0


def test_the_names_are_in_the_order_of_the_sums() -> None:
    assert [PARTS[i] for i in (TOO_LONG, IN_VAIN, TOO_SHORT, WRONG_SOURCE)] == list(PARTS)
    assert len(PARTS) == LEAST
