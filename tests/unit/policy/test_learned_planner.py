"""The planner against an exhaustive search, on curves that are given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from random_models import random_model, random_outlook
from random_recordings import random_line

from adaspec.cost.model import CostModel, StepShape, line
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import Pinned
from adaspec.policy.planner.forwards import (
    BatchState,
    batch_state,
    best_forwards,
    weigh_batch,
    weigh_ngram,
)
from adaspec.policy.planner.lengths import choose_lengths
from adaspec.policy.planner.memory import Memory, knob_row, new_memory
from adaspec.policy.planner.state import new_planner
from adaspec.predict.evidence_factors import EvidenceFactors, no_factors
from adaspec.predict.features import CANDIDATE, TAIL, RowFacts
from adaspec.predict.tables import packed

CAP = 6
NONE = np.empty(0, np.float32)
EMPTY = packed(np.empty(0, np.uint64), NONE, NONE, NONE, (0, 0, 0, 0), 1)
MODEL = random_model(0, EMPTY, evidence=False)


def random_rows(rng: np.random.Generator, count: int) -> RowFacts:
    def numbers(low: int, high: int) -> np.ndarray:
        return rng.integers(low, high, count).astype(np.int32)

    available = numbers(0, CAP + 2)
    return RowFacts(
        slots=np.arange(count, dtype=np.int32),
        prompt_tokens=numbers(1, 400),
        position=numbers(1, 200),
        holds_neural=rng.random(count) < 0.8,
        length=(available > 0).astype(np.int32),
        start=np.zeros(count, np.int32),
        agree=np.zeros(count, np.int32),
        seen=np.ones(count, np.int32),
        available=available,
        tail=np.full((count, TAIL), -1, np.int32),
        candidate=np.full((count, CANDIDATE), -1, np.int32),
    )


def fill(rng: np.random.Generator, memory: Memory, rows: RowFacts) -> None:
    """Curves of every shape, as `consider` would leave them."""
    for row in range(len(rows.slots)):
        for curve, there in (
            (memory.neural[row], rows.holds_neural[row]),
            (memory.ngram[row], rows.available[row] > 0),
        ):
            curve[0] = 1.0
            steps = rng.uniform(rng.choice([0.0, 0.6]), 1, len(curve) - 1)
            curve[1:] = np.cumprod(steps) if there else 0.0
        gain = rng.choice([0.0, rng.uniform(0, 5)])
        memory.splice_value[row] = memory.neural[row] * gain


def exhaustive(
    memory: Memory, rows: RowFacts, cost: CostModel, rate: float, neural_cap: int
) -> float:
    """The most that emitted - rate * step_s can be, over every plan of every row."""
    context = int((rows.prompt_tokens + rows.position).sum())
    holds = bool(rows.holds_neural.any())
    best = -np.inf
    for forwards in range(neural_cap + 1 if holds else 1):
        choices = []
        for row in range(len(rows.slots)):
            plans = [(0, 0.0)]
            for k in range(1, forwards + 1 if rows.holds_neural[row] else 1):
                hope = memory.splice_value[row, k] if k < CAP else 0.0
                plans.append((k, float(memory.neural[row, 1 : k + 1].sum() + hope)))
            for k in range(1, min(CAP, rows.available[row]) + 1):
                plans.append((k, float(memory.ngram[row, 1 : k + 1].sum())))
            choices.append(plans)
        for plan in itertools.product(*choices):
            drafted = sum(k for k, _ in plan)
            emitted = len(choices) + sum(worth for _, worth in plan)
            shape = StepShape(len(choices), context, drafted, forwards, holds)
            best = max(best, emitted - rate * cost.step_s(shape))
    return best


def state_of(
    memory: Memory, rows: RowFacts, cost: CostModel, cap: int = CAP, neural_cap: int = 0
) -> BatchState:
    """The batch as the planner sees it that reads no drafts."""
    costs, knobs = cost.constants(), knob_row({})
    state: BatchState = batch_state(
        memory, rows, knobs, costs, no_factors(), cap, neural_cap, False
    )
    return state


def planned(memory: Memory, rows: RowFacts, cost: CostModel, neural_cap: int) -> float:
    """What the planner's own choice comes to by the same measure."""
    count, state = len(rows.slots), state_of(memory, rows, cost, neural_cap=neural_cap)
    forwards = best_forwards(state)
    neural_len, ngram_len = np.zeros(count, np.int32), np.zeros(count, np.int32)
    choose_lengths(state, forwards, neural_len, ngram_len)
    assert not (neural_len.astype(bool) & ngram_len.astype(bool)).any()
    assert (neural_len <= np.where(rows.holds_neural, forwards, 0)).all()
    emitted = float(count)
    for row in range(count):
        k = neural_len[row]
        emitted += (
            memory.neural[row, 1 : k + 1].sum() + memory.ngram[row, 1 : ngram_len[row] + 1].sum()
        )
        if 0 < k < CAP:
            emitted += memory.splice_value[row, k]
    drafted, holds = int(neural_len.sum() + ngram_len.sum()), bool(rows.holds_neural.any())
    shape = StepShape(count, state.context, drafted, forwards, holds)
    return emitted - state.rate * cost.step_s(shape)


def shortfalls(seed: int, batches: int, *, captured: bool) -> list[float]:
    """How much of the batch's best value per step the planner leaves, batch by batch."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(batches):
        count = int(rng.integers(1, 4))
        rows = random_rows(rng, count)
        memory = new_memory([MODEL], count)
        fill(rng, memory, rows)
        cost = random_line(rng, captured)
        context = int((rows.prompt_tokens + rows.position).sum())
        tokens = rng.uniform(0.5, 4) * count
        seconds = cost.step_s(StepShape(count, context, count, 1, True))
        memory.throughput[0] = (tokens * 500, seconds * 500, 500)
        rate = state_of(memory, rows, cost).rate
        neural_cap = int(rng.integers(0, 5))
        best = exhaustive(memory, rows, cost, rate, neural_cap)
        got = planned(memory, rows, cost, neural_cap)
        assert got <= best + 1e-9
        # Against what the step is about: tokens emitted and seconds priced in tokens.
        found.append((best - got) / (count + rate * cost.step_s(StepShape(count, context))))
    return found


def test_the_planner_is_within_1_percent_of_exhaustive_search() -> None:
    assert max(shortfalls(1, 2000, captured=False)) < 0.01
    filling = shortfalls(2, 1000, captured=True)
    assert np.mean(filling) < 0.002
    assert np.quantile(filling, 0.95) < 0.001


def futures(
    memory: Memory, factors: EvidenceFactors, row: int, count: int, depth: int
) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """Every way in which the next `depth` tokens may turn out: its weight, survival, hopes."""
    neural, hope = memory.neural[row].copy(), memory.splice_value[row, 1:].copy()
    hope[CAP - 1 :] = 0.0
    told = []
    for k in range(count + 1, count + depth + 1):
        belief = neural[k] / neural[k - 1] if neural[k - 1] > 0 else 0.0
        nearby = factors.factors[np.searchsorted(factors.edges, belief, side="right")]
        told.append([min(f, 1 / belief) if belief > 0 else 0.0 for f in nearby])
    for path in itertools.product(*told):
        seen, hoped = neural.copy(), hope.copy()
        for k, factor in enumerate(path, count + 1):
            seen[k:] *= factor
            hoped[k - 1 :] *= factor
        yield 1 / len(factors.factors[0]) ** depth, seen, hoped


def test_a_forward_is_worth_the_mean_of_the_best_plans_that_its_token_may_lead_to() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        count, most = int(rng.integers(0, 4)), int(rng.integers(4, 8))
        rows = random_rows(rng, 3)
        memory, price = new_memory([MODEL], 3), float(rng.uniform(0.02, 0.5))
        fill(rng, memory, rows)
        factors = random_outlook(rng)
        weigh_ngram(memory, rows, price, CAP)
        state = state_of(memory, rows, random_line(rng, False))
        weigh_batch(state._replace(factors=factors, reads_drafts=True), count, most, price)
        expected = np.zeros(most + 1)
        for row in range(3):
            for forwards in range(count, most + 1):
                paths = list(futures(memory, factors, row, count, min(forwards - count, 2)))
                for weight, survives, hope in paths:
                    worth = np.cumsum(survives[1:] - price) + hope
                    best = max([memory.ngram_value[row], *worth[:forwards]])
                    expected[forwards] += weight * best
        np.testing.assert_allclose(
            memory.batch_value[count : most + 1], expected[count:], atol=1e-9
        )


def learned(
    rows: RowFacts, ngram_value: list[float], emitted_tokens: list[int], judged: list[bool]
) -> Memory:
    """The memory after a step in which nothing was verified, one forward beyond none."""
    cost = line("any", 0.01, 0.001, forward_s=0.001)
    model = Pinned(MODEL.compiled())
    address = np.array([model.address])
    planner = new_planner(
        [MODEL], address, knob_row({}), cost.constants(), 2, CAP, 0, reads_drafts=False
    )
    for column, facts in zip(planner.rows, rows, strict=True):
        column[:] = facts
    planner.limits["rows"] = 2
    planner.memory.ngram_value_before[:] = ngram_value
    kept = Pinned(planner)
    nothing, emitted = np.zeros(2, np.int32), np.zeros((2, 1), np.int32)
    counts = np.array(emitted_tokens, np.int32)
    stages.learn(
        kept.address, emitted, counts, nothing, nothing, nothing, np.array(judged), 0, 0.013
    )
    memory: Memory = kept.value.memory
    return memory


def test_the_drafter_is_credited_with_what_its_tokens_warn_of_where_the_target_judged() -> None:
    """A row that verifies nothing, its draft having shown its copy to be wrong, has saved it.

    Not so a request that ended, a draft that was dropped, a row that is recorded or in the shadow.
    """
    rows = random_rows(np.random.default_rng(0), 2)._replace(holds_neural=np.ones(2, np.bool_))
    warned = learned(rows, [-0.4, 0.0], [1, 1], [True, True]).drafter
    assert warned["brought"] == pytest.approx(0.4)
    assert warned["expected"] > 0
    half = [0.5, 0.5]
    both = learned(rows, half, [1, 1], [True, True])
    assert both.drafter["brought"] == pytest.approx(-1.0)
    for emitted, judged, brought, tokens, steps in (
        ([1, 1], [True, False], -0.5, 2, 1),
        ([1, 0], [True, False], -0.5, 1, 1),
        ([1, 1], [False, False], 0.0, 2, 1),
        ([0, 0], [False, False], 0.0, 0, 0),
    ):
        memory = learned(rows, half, emitted, judged)
        assert memory.drafter["brought"] == pytest.approx(brought)
        share = memory.drafter["expected"] / both.drafter["expected"]
        assert 0 < share < 1 if brought else share == 0
        assert (memory.throughput["tokens"], memory.throughput["steps"]) == (tokens, steps)
