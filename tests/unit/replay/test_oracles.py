"""References that know the future, against exhaustive search and plain statements."""

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_recordings import NEURAL_CAP, random_cost, random_requests, recording_of
from reference import Request, Step, close, common, look_up, play, step_seconds

from adaspec.replay.oracles import Oracle
from adaspec.replay.player import Player

SEEDS = st.integers(0, 2**32 - 1)


def copy_right(request, position):
    """How many n-gram tokens copied at this position are right."""
    if position >= len(request.output):
        return 0
    copied = look_up(request.prompt + request.output[:position]).copy
    return common(copied, request.output[position:])


def right_drafts(request, position, cap, most_neural, splices):
    """Every (forwards, tokens) whose draft is all right and leaves room for the bonus token."""
    left = len(request.output) - position - 1
    found = {(0, n) for n in range(copy_right(request, position) + 1)}
    for neural in range(1, min(request.accepted[position], most_neural) + 1):
        found.add((neural, neural))
        if splices:
            for n in range(copy_right(request, position + neural) + 1):
                found.add((neural, neural + n))
    return {(forwards, tokens) for forwards, tokens in found if tokens <= min(left, cap)}


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(1, 6), st.booleans())
def test_every_step_of_the_plan_oracle_is_the_best_of_all_plans(seed, concurrency, cap, splices):
    requests = random_requests(seed, concurrency, tokens=False, output_tokens=(4, 9))
    rng = np.random.default_rng(seed)
    cost = random_cost(rng)
    recording = recording_of(requests)
    kind = "plan-splice" if splices else "plan"
    order = np.arange(concurrency, dtype=np.int32)
    steps = plan_steps(requests, concurrency, cap, cost, splices)
    played = Player(recording, cost, cap).play(Oracle(kind), order, concurrency)
    assert played.tokens == sum(tokens for tokens, _ in steps)
    assert close(played.time_s, sum(seconds for _, seconds in steps))


def plan_steps(requests, concurrency, cap, cost, splices):
    """(emitted, seconds) per step of the greedy planner, as the design words it, until one ends.

    Equally good plans are told apart as the oracle does: fewer forwards, then no draft before the
    longest before those that fill a captured size; earlier rows first.
    """
    rows = [(r, 1) for r in range(concurrency)]
    recent: deque[tuple[int, float]] = deque(maxlen=200)
    steps: list[tuple[int, float]] = []
    while True:
        n = len(rows)
        context = sum(len(requests[r].prompt) + p for r, p in rows)
        if recent:
            rate = sum(tokens for tokens, _ in recent) / sum(seconds for _, seconds in recent)
        else:
            rate = n / step_seconds(cost, n, n, context, 0, False)
        best, choice = -np.inf, (0, 0, [0] * n)
        for forwards in range(min(8, NEURAL_CAP, cap) + 1):
            reach = [
                max(t for f, t in right_drafts(requests[r], p, cap, 8, splices) if f <= forwards)
                for r, p in rows
            ]
            totals = range(sum(reach) + 1)
            preferred = [0, sum(reach), *(size - n for size in cost.tokens)]
            for total in sorted(
                totals, key=lambda t: preferred.index(t) if t in preferred else len(preferred)
            ):
                seconds = step_seconds(cost, n, n + total, context, forwards, True)
                value = n + total - rate * seconds
                if value > best + 1e-12:
                    best, choice = value, (forwards, total, reach)
        forwards, total, reach = choice
        seconds = step_seconds(cost, n, n + total, context, forwards, True)
        recent.append((n + total, seconds))
        steps.append((n + total, seconds))
        following = []
        for (r, position), most in zip(rows, reach, strict=True):
            taken = min(total, most)
            total -= taken
            if position + taken + 1 < len(requests[r].output):
                following.append((r, position + taken + 1))
        if len(following) < n:
            break
        rows = following
    return steps


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(["ngram", "neural", "combine"]), st.integers(1, 4), st.integers(1, 9))
def test_the_papers_oracles_propose_the_longer_accepted_span(seed, kind, concurrency, cap):
    requests = random_requests(seed, 6, tokens=False)
    rng = np.random.default_rng([seed, 1])
    cost = random_cost(rng)
    order = rng.integers(0, 6, concurrency + rng.integers(0, 9)).tolist()

    def decide(request, position):
        left = len(request.output) - position - 1
        ngram = min(copy_right(request, position), left, cap) if kind != "neural" else 0
        neural = min(request.accepted[position], left, cap) if kind != "ngram" else 0
        if neural > ngram:
            return Step(neural, 0, neural, neural)
        return Step(0, ngram, ngram, 0)

    played = play(requests, order, concurrency, cost, decide, holds_neural=kind != "ngram")
    player = Player(recording_of(requests), cost, cap)
    result = player.play(Oracle(kind), np.array(order, np.int32), concurrency)
    assert (result.tokens, result.steps) == (played.tokens, played.steps)
    assert (result.drafted, result.neural_steps) == (played.drafted, played.neural_steps)
    assert close(result.time_s, played.time_s)


def test_the_papers_oracles_end_at_twenty_tokens():
    request = Request([*range(1, 40)], [*range(1, 40)], [0] * 39)
    player = Player(recording_of([request]), random_cost(np.random.default_rng(0)), 48)
    result = player.play(Oracle("ngram"), np.zeros(1, np.int32), 1)
    assert (result.steps, result.drafted) == (2, 20 + 16)
