"""A learned policy is taken through steps alike, stage by stage and phase by phase."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_policy
from random_recordings import random_cost

from adaspec.draft.index import NgramIndex
from adaspec.errors import DraftError
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Bools, Floats, Ints, Setup
from adaspec.predict.tables import packed
from adaspec.step.executor import Executor, ShownDrafts, Step
from adaspec.step.phased import PhasedExecutor, executor_of

VOCABULARY = 6
SLOTS = 9


class Ending(ShownDrafts):
    """Drafts of which some rows' texts end after so many tokens."""

    last: Ints

    def ended(self, neural_len: Ints) -> Bools:
        found: Bools = (neural_len > 0) & (neural_len >= self.last)
        return found


def random_setup(rng: np.random.Generator, evidence: bool) -> tuple[LearnedPolicy, Setup]:
    keys = np.zeros(0, np.uint64)
    nothing = np.zeros(0, np.float32)
    tables = packed(keys, nothing, nothing, nothing, (0.6, 0.4, 1.1, 1.3), 3)
    policy = random_policy(
        rng,
        tables,
        evidence=evidence,
        cap=int(rng.choice([1, 6, 48])),
        neural_cap=int(rng.choice([1, 3, 5, 8])),
    )
    setup = Setup(
        cost=random_cost(rng),
        cap=int(rng.choice([1, 4, 30])),
        neural_cap=int(rng.choice([0, 1, 5, 5])),
        slots=SLOTS,
        shows_tokens=True,
        shows_confidences=True,
    )
    return policy, setup


def same(found: Step, expected: Step) -> None:
    assert (found.planned, found.forwards, found.shape) == (
        expected.planned,
        expected.forwards,
        expected.shape,
    )
    for name in ("slots", "context_tokens", "holds_neural", "start", "available"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    for name in ("length", "start", "first", "agree", "seen", "available"):
        np.testing.assert_array_equal(
            getattr(found.batch.matches, name), getattr(expected.batch.matches, name), name
        )
    assert found.cut is not None and expected.cut is not None
    assert found.proposal is not None and expected.proposal is not None
    copied = expected.cut.ngram_len > 0
    np.testing.assert_array_equal(found.cut.start[copied], expected.cut.start[copied])
    for one, other in ((found.cut, expected.cut), (found.proposal, expected.proposal)):
        np.testing.assert_array_equal(one.neural_len, other.neural_len)
        np.testing.assert_array_equal(one.ngram_len, other.ngram_len)


class Both:
    """One random batch, taken through steps by both executors on one index."""

    def __init__(self, rng: np.random.Generator, evidence: bool) -> None:
        self.rng, self.index = rng, NgramIndex()
        policy, self.setup = random_setup(rng, evidence)
        self.policies = policy, copy.copy(policy)
        self.phased = PhasedExecutor(self.policies[0], self.setup, self.index)
        self.staged = Executor(self.policies[1], self.setup, self.index)
        count = int(rng.integers(1, SLOTS + 1))
        self.prompt = rng.integers(1, 40, count).astype(np.int32)
        self.position = np.ones(count, np.int32)
        self.slots, self.holds = np.zeros(count, np.int32), np.zeros(count, np.bool_)
        for row in range(count):
            self.slots[row] = self.index.open(rng.integers(0, VOCABULARY, self.prompt[row] + 1))
            asked = int(self.slots[row]), int(self.prompt[row]), count
            admitted = {executor.admit(*asked) for executor in (self.phased, self.staged)}
            (self.holds[row],) = admitted

    def step(self) -> None:
        """One step, the same of everything for both."""
        rng, count = self.rng, len(self.slots)
        width = max(self.setup.neural_cap, 1)
        tokens = rng.integers(0, VOCABULARY, (count, width)).astype(np.int32)
        tokens[rng.random(tokens.shape) < 0.1] = -1
        confidences = (-rng.exponential(1.0, (count, width, 3))).astype(np.float32)
        confidences[rng.random(confidences.shape) < 0.1] = np.nan
        exempt = None if rng.random() < 0.5 else rng.random(count) < 0.5
        last = rng.integers(1, 9, count).astype(np.int32) if rng.random() < 0.3 else None
        # An engine may end drafting early, and limit rows.
        most_forwards = int(rng.integers(0, 9)) if rng.random() < 0.3 else 9
        room = rng.integers(-1, 9, count).astype(np.int32) if rng.random() < 0.3 else None
        lenient = bool(rng.random() < 0.5)
        steps = [
            self.until_settled(
                executor, tokens, confidences, exempt, last, most_forwards, room, lenient
            )
            for executor in (self.phased, self.staged)
        ]
        cut = steps[1].cut
        assert cut is not None
        drafted = cut.neural_len + cut.ngram_len
        accepted = np.array([rng.integers(0, most + 1) for most in drafted], np.int32)
        emitted_tokens = accepted + 1
        emitted = rng.integers(0, VOCABULARY, (count, int(emitted_tokens.max()))).astype(np.int32)
        known = None if rng.random() < 0.5 else rng.random(count) < 0.8
        judged = None if rng.random() < 0.5 else rng.random(count) < 0.8
        if known is not None:
            emitted_tokens = np.where(known, emitted_tokens, 0).astype(np.int32)
            drafted = np.where(known, drafted, 0).astype(np.int32)
        forwards = int(rng.integers(0, 6))
        for executor, step in zip((self.phased, self.staged), steps, strict=True):
            outcome = executor.outcome(
                step,
                drafted,
                np.minimum(cut.neural_len, drafted),
                accepted,
                emitted,
                emitted_tokens,
                forwards,
                known,
                judged,
            )
            executor.learn(step, outcome)
        same(*steps)
        found, expected = (policy.planner for policy in self.policies)
        for name in ("neural", "ngram", "offered", "expected", "recent_steps"):
            np.testing.assert_array_equal(
                getattr(found.memory, name), getattr(expected.memory, name), name
            )
        self.holds = steps[1].holds_neural.copy()
        flat = [emitted[row, :length] for row, length in enumerate(emitted_tokens)]
        self.index.extend(self.slots, np.concatenate(flat), emitted_tokens)
        self.position = self.position + emitted_tokens

    def until_settled(
        self,
        executor: Executor,
        tokens: Ints,
        confidences: Floats,
        exempt: Bools | None,
        last: Ints | None,
        most_forwards: int,
        room: Ints | None,
        lenient: bool,
    ) -> Step:
        step = executor.begin(
            self.slots.copy(), self.prompt.copy(), self.position.copy(), self.holds.copy()
        )
        executor.keep(step, exempt)
        step.source = source = (ShownDrafts if last is None else Ending)(
            self.index, step, tokens.copy(), confidences.copy()
        )
        if isinstance(source, Ending):
            assert last is not None
            source.last = last
        wants_forward = executor.plan(step) > 0
        while wants_forward and step.forwards < most_forwards:
            wants_forward = executor.forward_ran(step)
        executor.settle(step, room, lenient)
        return step


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), evidence=st.booleans())
def test_stage_by_stage_and_phase_by_phase_are_one(seed: int, evidence: bool) -> None:
    both = Both(np.random.default_rng(seed), evidence)
    for _ in range(6):
        both.step()


def test_a_slot_that_was_closed_is_an_error_in_both() -> None:
    both = Both(np.random.default_rng(3), evidence=True)
    both.index.close(int(both.slots[0]))
    for executor in (both.phased, both.staged):
        with pytest.raises(DraftError, match="holds no request"):
            executor.begin(both.slots, both.prompt, both.position, both.holds)


def test_only_the_learned_policy_itself_is_taken_phase_by_phase() -> None:
    class Mine(LearnedPolicy):
        def keep(self, batch: object) -> bool:
            return False

    rng = np.random.default_rng(0)
    policy, setup = random_setup(rng, evidence=True)
    mine = Mine("mine", policy.model, policy.cap, policy.neural_cap)
    assert type(executor_of(policy, setup, NgramIndex())) is PhasedExecutor
    assert type(executor_of(mine, setup, NgramIndex())) is Executor
