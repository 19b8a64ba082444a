import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_policy
from random_recordings import random_cost, random_requests, recording_of

from adaspec.cost import ASYNC, SYNC
from adaspec.cost.model import step_s, step_shape
from adaspec.replay.learned import LearnedReplay, decide_step
from adaspec.replay.loop import context_tokens, finish_step, goes_on, read_beside, running

CAP = 12


@pytest.mark.parametrize("engine", [SYNC, ASYNC])
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.sampled_from([1.0, 1.1, 1.5, 3.0, np.inf]))
def test_no_step_is_planned_longer_than_the_bound_unless_it_has_to_be(
    engine, seed, concurrency, times
):
    rng, requests = np.random.default_rng(seed), random_requests(seed, 8, tokens=True)
    cost, recording = random_cost(rng), recording_of(requests, seed=seed).with_prefill()
    costs, order = cost.constants(), rng.permutation(8).astype(np.int32)
    plain_s = step_s(costs, step_shape(concurrency, 60 * concurrency, 0, 0, False))
    longest_s = times * float(plain_s)
    replay = LearnedReplay(recording, random_policy(seed % 5, True))
    found = {}
    for bound in (None, longest_s):
        loop, *decides = replay.begin(order, concurrency, cost, CAP, engine, longest_s=bound)
        drafted = []
        while goes_on(loop):
            prompts, context = read_beside(loop), context_tokens(running(loop))
            _, shape, accepted = decide_step(loop, *decides)
            verified = max(shape.drafted, shape.budget)
            if bound is not None and verified:
                held = shape.holds_neural
                read = prompts if shape.forwards else 0
                facts = shape.forwards, held, shape.budget, prompts, read
                whole = step_shape(concurrency, context, shape.drafted, *facts)
                assert step_s(costs, whole) <= longest_s * (1 + 1e-9)
            drafted.append((shape.drafted, shape.forwards))
            finish_step(loop, costs, shape, accepted)
        found[bound] = drafted
    if times == np.inf:
        assert found[None] == found[longest_s]
