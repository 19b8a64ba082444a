"""vLLM's suffix decoding in the closed loop: the loop by a known look-up, then the real cache."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_recordings import random_cost, random_requests, recording_of
from reference import Request, look_up
from test_loop_reference import assert_equal

from adaspec.errors import EvaluationError
from adaspec.replay.contender import parse_contender
from adaspec.replay.loop import result_of
from adaspec.replay.player import Player
from adaspec.replay.suffix import SuffixDecoding, SuffixMemory, new_cache, run_suffix, why_not_here

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


def played(recording, order, concurrency, cost, cache):
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
    found = played(recording, order, concurrency, cost, cache)
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
        played(recording, order[at : at + 1], 1, cost, new_cache()).accepted
        for at in range(len(prompts))
    ]
    assert alone[:2] == [0, 0]
    assert alone[2] > 40  # from its prompt
    together = played(recording, order, 1, cost, new_cache())
    assert together.accepted > 80  # the second from the first's answer, too
    again = played(recording, order[[0, 0]], 1, cost, new_cache())
    assert again.accepted == 0  # but nobody from an earlier copy of itself
