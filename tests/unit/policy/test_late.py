"""What an async engine's host decides, and what is chosen within that."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_recordings import KINDS, random_recording
from random_models import random_policy
from random_recordings import random_cost, with_hidden_overhead

from adaspec.cost.engine import ASYNC
from adaspec.cost.model import CostModel
from adaspec.policy.base import deciding_of
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner import stages
from adaspec.policy.planner.late import (
    decide_forwards,
    enter_late,
    forwards_table,
    new_late,
)
from adaspec.policy.protocol import Batch, Drafts, Outcome, Proposal, Setup
from adaspec.replay.loop import run_policy
from adaspec.replay.recording import Recording
from adaspec.step.executor import Executor, Step
from adaspec.train.token_tables import TableMaker

CAP = 30
SEEDS = st.integers(0, 2**32 - 1)


@dataclass
class Host:
    """The host's budget, slow and obvious, from what the module says of it."""

    kind_of: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    """Per slot: None in a request's first step."""
    usual: dict[int, float] = field(default_factory=dict)
    wanted: dict[tuple[int, int] | None, float] = field(default_factory=dict)
    rows: dict[tuple[int, int] | None, float] = field(default_factory=dict)
    slack: dict[tuple[int, int] | None, float] = field(default_factory=dict)
    all_wanted: float = 0.0
    all_rows: float = 0.0

    def enter(self, slot: int) -> None:
        self.kind_of[slot] = None

    def budget(self, cost: CostModel, running: int) -> int:
        mean = self.all_wanted / self.all_rows if self.all_rows else 4.0
        foreseen = 0.0
        for kind in self.kind_of.values():
            wanted, rows = self.wanted.get(kind, 0.0), self.rows.get(kind, 0.0)
            foreseen += (wanted + 5 * mean) / (rows + 5) + self.slack.get(kind, 0.0)
        tokens = running + max(math.floor(foreseen + 0.5), 0)
        captured = [size for size in cost.tokens if size <= cost.largest_graph]
        above = [size for size in captured if size >= tokens]
        if not above:
            return tokens - running
        below = [size for size in captured if running <= size < above[0]]
        near = below and tokens - below[-1] < above[0] - tokens
        return (below[-1] if near else above[0]) - running

    def note(
        self,
        slots: list[int],
        wanted: list[int],
        reach: list[float],
        price: float,
        met: float,
    ) -> None:
        count = len(slots)
        moved = 2.0 * ((met if met > price else 0.0) - price) / count / math.sqrt(count)
        before, self.kind_of = self.kind_of, {}
        for slot, want, reached in zip(slots, wanted, reach, strict=True):
            kind = before[slot]
            self.wanted[kind] = self.wanted.get(kind, 0.0) * 0.999 + want
            self.rows[kind] = self.rows.get(kind, 0.0) * 0.999 + 1
            self.slack[kind] = self.slack.get(kind, 0.0) + moved
            self.all_wanted = self.all_wanted * 0.999 + want
            self.all_rows = self.all_rows * 0.999 + 1
            usual = float(want) if kind is None else self.usual[slot]
            self.usual[slot] = usual + 0.3 * (want - usual)
            self.kind_of[slot] = (
                sum(reached >= limit for limit in (0.0, 0.25, 0.6)),
                sum(self.usual[slot] >= limit for limit in (1, 2, 4, 8, 14)),
            )


class Watched:
    """A learned policy whose host is shadowed by one that hears of choices, and of nothing else."""

    def __init__(self, policy: LearnedPolicy, cost: CostModel) -> None:
        self.policy, self.cost, self.name = policy, cost, policy.name
        self.host, self.needs = Host(), policy.needs
        self.budgets: list[int] = []
        self.admit, self.learn = policy.admit, policy.learn
        self.proceed, self.release, self.keep = policy.proceed, policy.release, policy.keep

    def start(self, setup: Setup) -> None:
        self.policy.start(setup)

    def plan(self, batch: Batch) -> int:
        # Whoever is unknown has entered since.
        for row in np.flatnonzero(batch.position == 1).tolist():
            self.host.enter(int(batch.slots[row]))
        return self.policy.plan(batch)

    def budget(self, batch: Batch) -> int:
        found = self.policy.budget(batch)
        assert found == min(self.host.budget(self.cost, len(batch)), len(batch) * CAP)
        self.budgets.append(found)
        return found

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        proposal = self.policy.settle(batch, drafts)
        late, count = self.policy.planner.late, len(batch)
        costs = self.policy.planner.costs
        price = stages.rate_of(
            self.policy.planner.memory,
            self.policy.late_knobs,
            costs,
            count,
            int(batch.context_tokens.sum()),
        )
        price *= costs.mean_token_s
        self.host.note(
            batch.slots.tolist(),
            late.wanted[:count].tolist(),
            late.reach[:count].tolist(),
            price,
            float(late.step["price"][0]),
        )
        return proposal


def policy_for(recording: Recording, rng: np.random.Generator, evidence: bool) -> LearnedPolicy:
    tables = TableMaker(recording, 0).make(np.ones(len(recording), np.bool_))
    policy = random_policy(rng, tables, evidence=evidence, cap=48, neural_cap=5)
    policy.forwards = forwards_table({1: (2, 3), 4: (1, 1)})
    return policy


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(SEEDS, st.booleans(), st.integers(1, 6))
def test_a_budget_follows_from_earlier_choices_and_is_what_the_step_is_charged_for(
    kind: str, seed: int, evidence: bool, concurrency: int
) -> None:
    rng = np.random.default_rng(seed)
    recording = random_recording(seed % 1000, kind)
    cost = with_hidden_overhead(random_cost(rng))
    watched = Watched(policy_for(recording, rng, evidence), cost)
    charged: list[tuple[int, int, int, int]] = []

    class Watching(Executor):
        def outcome(self, step: Step, *args: object, **facts: object) -> Outcome:
            found = super().outcome(step, *args, **facts)  # type: ignore[arg-type]
            shape = step.shape
            assert shape is not None
            first = bool((step.batch.position == 1).any())
            charged.append((shape.drafted, shape.drafted + shape.idle, shape.forwards, first))
            paid = cost.under(ASYNC).charged_to(deciding_of(watched, self.setup.shows_tokens))
            assert found.step_s == pytest.approx(paid.step_s(shape), rel=1e-12)
            if step.holds_neural.any():
                forwards = 2 if len(step.slots) == 1 else 1
                forwards += first and len(step.slots) == 1
                if len(step.slots) in (1, 4, 5, 6):
                    assert step.forwards == min(forwards, self.setup.neural_cap)
            else:
                assert step.forwards == 0
            return found

    order = rng.integers(0, len(recording), 14).astype(np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adaspec.replay.loop.executor_of", Watching)
        run_policy(recording, watched, order, concurrency, cost, CAP, engine=ASYNC)
    assert [tokens for _, tokens, _, _ in charged] == watched.budgets
    assert all(drafted <= tokens for drafted, tokens, _, _ in charged)


def test_forwards_are_those_of_the_nearest_loads_in_geometric_steps() -> None:
    late = new_late(4, forwards_table({4: (3, 5), 64: (1, 1)}))
    found = {load: decide_forwards(late, load) for load in (1, 4, 8, 16, 33, 64, 500)}
    assert found == {1: 3, 4: 3, 8: 3, 16: 2, 33: 1, 64: 1, 500: 1}
    enter_late(late, 2)
    assert decide_forwards(late, 2) == 5
    assert [decide_forwards(new_late(1), load) for load in (1, 50)] == [1, 1]


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(0, 14), st.integers(0, 3))
def test_the_choice_is_nearly_the_best_that_fits_the_budget(
    seed: int, rows: int, budget: int, forwards: int
) -> None:
    rng = np.random.default_rng(seed)
    recording = random_recording(seed % 1000, "confidences")
    policy = policy_for(recording, rng, evidence=True)
    cost = random_cost(rng)
    policy.start(Setup(cost, CAP, 5, rows, True, True, engine=ASYNC))
    planner = policy.planner
    memory = planner.memory
    planner.limits["rows"] = rows
    planner.rows.available[:rows] = 8
    planner.late.step["budget"] = budget
    for row in range(rows):
        for curve in (memory.ngram[row], memory.neural[row]):
            curve[0], curve[1:] = 1.0, 0.0
            length = min(len(curve) - 1, 8)
            curve[1 : length + 1] = np.cumprod(rng.uniform(0.3, 1.0, length))
        memory.splice[row] = 0.0
        memory.splice[row, :, 1:5] = np.cumprod(rng.uniform(0.3, 1.0, (9, 4)), axis=1)
    neural_len, ngram_len = np.zeros((2, rows), np.int32)
    assert not stages.choose(policy.address, forwards, neural_len, ngram_len)
    assert neural_len.sum() + ngram_len.sum() <= budget
    assert neural_len.max() <= forwards

    def value(row: int, neural: int, copied: int) -> float:
        if neural == 0:
            return float(memory.ngram[row, 1 : copied + 1].sum())
        reached = memory.neural[row, neural]
        spliced = reached * memory.splice[row, neural, 1 : copied + 1].sum()
        return float(memory.neural[row, 1 : neural + 1].sum() + spliced)

    drafts = [(0, copied) for copied in range(9)]
    drafts += [(neural, copied) for neural in range(1, forwards + 1) for copied in range(5)]
    best_of = np.full(budget + 1, 0.0)
    for row in range(rows):
        before = best_of.copy()
        for (neural, copied), tokens in itertools.product(drafts, range(budget + 1)):
            if neural + copied <= tokens:
                gained = before[tokens - neural - copied] + value(row, neural, copied)
                best_of[tokens] = max(best_of[tokens], gained)
    found = sum(value(row, int(neural_len[row]), int(ngram_len[row])) for row in range(rows))
    assert found == pytest.approx(best_of[budget]) if rows == 1 else found >= 0.8 * best_of[budget]
