"""Replays of rules and rivals, against plain restatements of them."""

from types import SimpleNamespace

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from random_recordings import (
    NEURAL_CAP,
    random_cost,
    random_requests,
    recorded,
    recording_of,
    static_specs,
)
from reference import Online, Played, Request, close, look_up, play, static_step

from adaspec.cost import ASYNC, SYNC
from adaspec.cost.model import step_shape
from adaspec.draft.matches import ring_of
from adaspec.errors import EvaluationError
from adaspec.policy.budget import keep_likeliest, ranked
from adaspec.policy.protocol import Proposal
from adaspec.policy.static import parse_policy, ranking
from adaspec.replay import adaptive
from adaspec.replay.contender import parse_contender
from adaspec.replay.loop import gap_seconds, result_of
from adaspec.replay.own import OwnPolicy
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording
from adaspec.replay.rules import ByLoad
from adaspec.replay.suffix import SuffixDecoding, SuffixMemory, new_cache, run_suffix, why_not_here

SEEDS = st.integers(0, 2**32 - 1)
PACES = st.sampled_from([None, 0.0, 1.0, 30.0, 1000.0])
"""Seconds between arrivals; None: a closed loop."""


def arrivals(rng, order, pace):
    return None if pace is None else rng.exponential(pace, len(order)).cumsum()


def assert_equal(a, b):
    assert (a.tokens, a.steps, a.row_steps) == (b.tokens, b.steps, b.row_steps)
    assert (a.drafted, a.accepted, a.neural_steps) == (b.drafted, b.accepted, b.neural_steps)
    assert close(a.time_s, b.time_s), (a.time_s, b.time_s)
    for name in ("first_s", "token_s", "request_s"):
        ours, theirs = np.sort(getattr(a, name)), np.sort(getattr(b, name))
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    if isinstance(b, Played):
        np.testing.assert_allclose(np.repeat(gap_seconds(), a.gaps), np.sort(b.gaps), rtol=0.006)
    else:
        np.testing.assert_array_equal(a.gaps, b.gaps)


def world(seed, *, tokens, ring=None):
    requests = random_requests(seed, 6, tokens=tokens)
    recording = recording_of(requests, seed=seed if tokens else None, ring=ring)
    return requests, recording, np.random.default_rng([seed, 1])


def random_order(rng, concurrency, requests=6):
    return rng.integers(0, requests, concurrency + rng.integers(0, 9)).tolist()


@pytest.mark.parametrize("engine", [SYNC, ASYNC])
@pytest.mark.parametrize("tokens", [False, True], ids=["without tokens", "with tokens"])
def test_every_static_rule_is_replayed_as_the_design_says(tokens, engine, monkeypatch):
    """In an async engine it runs all its forwards and verifies its longest draft."""

    @settings(max_examples=100, deadline=None)
    @given(SEEDS, static_specs(), st.integers(1, 5), st.integers(1, 9), st.booleans(), PACES)
    def check(seed, spec, concurrency, cap, prefill, pace):
        # In every other case there is a ring.
        ended = random_requests(seed + 1, seed % 2 * 6, tokens=False)
        ring = ring_of(each.output for each in ended)
        monkeypatch.setattr(reference, "RING", ring.tokens.tolist())
        requests, recording, rng = world(seed, tokens=tokens, ring=ring)
        cost, order = random_cost(rng), random_order(rng, concurrency)
        policy, entries = parse_policy(spec), np.array(order, np.int32)
        recording = recording.with_prefill() if prefill else recording
        player = Player(recording, cost, cap, engine)
        player.check(policy)
        rule, holds_neural = policy.rule, policy.rule.neural_len > 0

        def decide(request, position):
            return static_step(request, position, rule, cap)

        least = (0, 0)
        if engine == ASYNC:  # prepares a step before it is known which rows will copy
            longest = max(rule.ngram_len, rule.neural_len + rule.splice_len)
            least = min(longest, cap), min(rule.neural_len, cap)
        comes_s = arrivals(rng, order, pace)
        how = holds_neural, prefill, *least, comes_s
        played = play(requests, order, concurrency, cost, decide, *how)
        assert_equal(player.play(policy, entries, concurrency, comes_s), played)

    check()


@settings(max_examples=60, deadline=None)
@given(
    SEEDS,
    st.integers(1, NEURAL_CAP).map(lambda k: f"budget:{k}"),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from(["none", "tokens", "confidences"]),
    st.booleans(),
    PACES,
)
def test_a_budget_plays_alike_compiled_and_asked_step_by_step(
    seed, spec, concurrency, cap, shown, prefill, pace
):
    requests = random_requests(seed, 6, tokens=shown != "none", output_tokens=(10, 60))
    recording = recording_of(requests, seed=seed if shown == "confidences" else None)
    assert recording.shows_confidences == (shown == "confidences")
    rng = np.random.default_rng([seed, 1])
    cost = random_cost(rng).without_deciding()
    order = np.array(random_order(rng, concurrency), np.int32)
    if prefill:
        recording = recording.with_prefill()
    alike = np.full_like(order, order[0])  # leave all at once: nobody waits for others' prefill
    for entries in (order, alike):
        run = entries, concurrency, arrivals(rng, order, pace)
        player = Player(recording, cost, cap)
        own = OwnPolicy(spec, OwnRival(spec, cap))
        assert_equal(player.play(parse_contender(spec), *run), player.play(own, *run))


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 9), st.integers(1, 5), st.booleans(), PACES, st.booleans())
def test_copies_are_verified_by_what_was_accepted_of_their_kind(
    seed, longest, concurrency, prefill, pace, is_async
):
    ring = ring_of(each.output for each in random_requests(seed + 1, seed % 2 * 6, tokens=False))
    requests = random_requests(seed, 6, tokens=False, output_tokens=(10, 60))
    rng, recording = np.random.default_rng([seed, 1]), recording_of(requests, ring=ring)
    cost, order = random_cost(rng).without_deciding(), random_order(rng, concurrency)
    recording = recording.with_prefill() if prefill else recording
    player = Player(recording, cost, 48, ASYNC if is_async else SYNC)
    comes_s = arrivals(rng, order, pace)
    run = np.array(order, np.int32), concurrency, comes_s
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reference, "RING", ring.tokens.tolist())
        decide_all = Online(longest, concurrency, cost, is_async).decide
        how = requests, order, concurrency, cost, None, False, prefill
        played = play(*how, comes=comes_s, decide_all=decide_all)
    assert_equal(player.play(parse_contender(f"online:{longest}"), *run), played)


def test_an_order_too_short_to_fill_the_batch_is_refused():
    _, recording, rng = world(1, tokens=False)
    player = Player(recording, random_cost(rng), 48)
    with pytest.raises(EvaluationError, match="2 requests cannot fill a batch of 3"):
        player.play(parse_contender("none"), np.arange(2, dtype=np.int32), 3)


def test_positions_where_the_recording_drafted_less_show_no_look_behind():
    request = Request([1, 2, 1], [2, 1, 2, 1], [0, 0, 0, 0], [[-1, -1], [-1, -1], [9, -1], [9, 9]])
    recording = build_recording([recorded(request, "0")], 2)
    assert recording.columns.splice_match_length[1].tolist() == [0, 0]
    spec = "hybrid-splice:32:1:2:1:3"
    cost, order = random_cost(np.random.default_rng(0)), np.zeros(1, np.int32)
    compiled = Player(recording, cost, 48).play(parse_contender(spec), order, 1)
    # Two tokens in each of three steps, and one behind the only draft of two.
    assert (compiled.tokens, compiled.drafted) == (3, 7)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 5), st.booleans(), PACES, st.sampled_from([SYNC, ASYNC]))
def test_a_rule_for_each_load_is_the_rule_of_that_load(seed, concurrency, prefill, pace, engine):
    """With one rule for all loads, it is that rule."""
    _, recording, rng = world(seed, tokens=True)
    cost, order = random_cost(rng), np.array(random_order(rng, concurrency), np.int32)
    recording = recording.with_prefill() if prefill else recording
    player, run = Player(recording, cost, 9, engine), (order, concurrency)
    run = *run, arrivals(rng, order, pace)
    rule, other = map(parse_policy, ("hybrid-splice:3:4:2:1:3", "fixed:ngram:5:2"))
    same = ByLoad(((1, rule), (4, rule)))
    assert_equal(player.play(same, *run), player.play(rule, *run))
    both = ByLoad(((1, rule), (4, other)))
    assert both.numbers(9).tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    # Whatever serves, an open loop answers all.
    if pace is not None:
        assert player.play(both, *run).tokens == player.play(rule, *run).tokens


class OwnRival:
    """What `budget:K` decides, asked step by step where deciding costs nothing."""

    def __init__(self, spec, cap):
        self._depth = min(parse_policy(spec).draft_len, cap)
        self._state, self._odds = adaptive.begin(1, self._depth), np.empty((0, 0))

    def decide(self, batch):
        drafts, count = batch.draft(self._depth), len(batch)
        if batch.setup.shows_confidences:
            self._odds = ranking(drafts.confidences).astype(np.float64)
        shape = step_shape(
            count, int((batch.prompt_tokens + batch.position).sum()), 0, self._depth, True
        )
        lengths = np.full(count, self._depth)
        survival = adaptive.survivals(self._state, np.zeros(count, int), self._odds, lengths)
        offered = ranked(survival, lengths)
        best = adaptive.best_count(batch.setup.cost.constants(), shape, offered, 1.0)
        keep_likeliest(offered, survival, lengths, best)
        return Proposal(lengths, np.zeros_like(lengths))

    def learn(self, report):
        tried, accepted = (
            each.astype(int) for each in (report.proposal.neural_len, report.accepted)
        )
        adaptive.learn(self._state, np.zeros(len(tried), int), self._odds, tried, accepted)


CAP = 48
SEEDS = st.integers(0, 2**32 - 1)


class LookUp:
    """A cache that drafts what vLLM's n-gram look-up would, and minds how it is called."""

    def __init__(self, length):
        self.length = length
        self.text: dict[int, list[int]] = {}
        self.answers: dict[int, list[int]] = {}

    @property
    def cached_requests(self):
        return self.answers.keys()

    def start_request(self, number, prompt):
        assert number not in self.text
        self.text[number] = prompt.tolist()
        self.answers[number] = []

    def stop_request(self, number):
        del self.text[number]

    def add_active_response(self, number, tokens):
        self.text[number] += tokens.tolist()
        if number in self.answers:
            self.answers[number] += tokens.tolist()

    def evict_cached_response(self, number):
        del self.answers[number]

    def speculate(self, number, pattern, *, max_spec_tokens, max_spec_factor, min_token_prob):
        text = self.text[number]
        assert text[-len(pattern) :] == pattern.tolist()
        copy = look_up(text).copy
        return SimpleNamespace(token_ids=copy[: min(self.length, max_spec_tokens)])


def played_with(recording, order, concurrency, cost, cache):
    memory = SuffixMemory(recording.requests, cache, ())
    run = order, concurrency, cost, CAP
    return result_of(run_suffix(recording, SuffixDecoding(), *run, memory))


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 4), st.integers(1, 9))
def test_with_the_drafts_of_a_look_up_it_is_that_look_up(seed, concurrency, length):
    rng = np.random.default_rng(seed)
    recording = recording_of(random_requests(seed, 6, tokens=False))
    order = rng.integers(0, 6, 9).astype(np.int32)
    cost = random_cost(rng)
    cache = LookUp(length)
    rule = parse_contender(f"fixed:ngram:{length}:1")
    expected = Player(recording, cost, CAP).play(rule, order, concurrency)
    found = played_with(recording, order, concurrency, cost, cache)
    assert_equal(found, expected)
    assert len(cache.text) <= concurrency  # who has ended was let go


def test_where_the_cache_is_missing_it_is_said(monkeypatch):
    def refuse(name):
        raise ImportError(f"no {name}\nand more")

    monkeypatch.setattr("adaspec.replay.suffix.import_module", refuse)
    cost = random_cost(np.random.default_rng(1))
    player = Player(recording_of(random_requests(1, 2, tokens=False)), cost, CAP)
    with pytest.raises(EvaluationError, match=r"^'suffix' needs arctic-inference, .*: no arctic"):
        player.check(parse_contender("suffix"))


@pytest.mark.skipif(why_not_here() is not None, reason=f"suffix decoding {why_not_here()}")
def test_vllms_own_cache_copies_from_the_request_and_from_others_answers():
    answer = list(range(100, 160))
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, *answer]]
    recording = recording_of(
        [Request(prompt, [50 + at, *answer], [0] * 61, None) for at, prompt in enumerate(prompts)]
    )
    order, cost = np.arange(3, dtype=np.int32), random_cost(np.random.default_rng(0))
    alone = [
        played_with(recording, order[at : at + 1], 1, cost, new_cache()).accepted
        for at in range(len(prompts))
    ]
    assert alone[:2] == [0, 0]
    assert alone[2] > 40  # from its prompt
    together = played_with(recording, order, 1, cost, new_cache())
    assert together.accepted > 80  # the second from the first's answer, too
    again = played_with(recording, order[[0, 0]], 1, cost, new_cache())
    assert again.accepted == 0  # but nobody from an earlier copy of itself
