"""The planner against an exhaustive search, on curves that are given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from random_models import random_model, random_outlook
from random_tapes import random_cost

from adaspec.cost.model import CostModel, step_s
from adaspec.policy import stages
from adaspec.policy.desk import (
    CAME_OF_IT,
    EXPECTED,
    STEPS,
    SUM_TOKENS,
    Desk,
    knob_row,
    new_desk,
)
from adaspec.policy.pace import rate_of
from adaspec.policy.planning import weigh_batch, weigh_ngram
from adaspec.predict.features import CANDIDATE, TAIL, Rows
from adaspec.predict.outlook import Outlook, no_outlook
from adaspec.predict.tables import packed

CAP = 6
NONE = np.empty(0, np.float32)
EMPTY = packed(np.empty(0, np.uint64), NONE, NONE, NONE, (0, 0, 0, 0), 1)
MODEL = random_model(0, EMPTY, evidence=False)


def random_rows(rng: np.random.Generator, count: int) -> Rows:
    def numbers(low: int, high: int) -> np.ndarray:
        return rng.integers(low, high, count).astype(np.int32)

    available = numbers(0, CAP + 2)
    return Rows(
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


def fill(rng: np.random.Generator, desk: Desk, rows: Rows) -> None:
    """Curves of every shape, as `consider` would leave them."""
    for row in range(len(rows.slots)):
        for curve, there in (
            (desk.neural[row], rows.holds_neural[row]),
            (desk.ngram[row], rows.available[row] > 0),
        ):
            curve[0] = 1.0
            steps = rng.uniform(rng.choice([0.0, 0.6]), 1, len(curve) - 1)
            curve[1:] = np.cumprod(steps) if there else 0.0
        gain = rng.choice([0.0, rng.uniform(0, 5)])
        desk.hope[row] = desk.neural[row] * gain


def exhaustive(desk: Desk, rows: Rows, cost: CostModel, rate: float, neural_cap: int) -> float:
    """The most that emitted - rate * step_s can be, over every plan of every row."""
    constants, context = cost.constants(), int((rows.prompt_tokens + rows.position).sum())
    holds = bool(rows.holds_neural.any())
    best = -np.inf
    for forwards in range(neural_cap + 1 if holds else 1):
        choices = []
        for row in range(len(rows.slots)):
            plans = [(0, 0.0)]
            for k in range(1, forwards + 1 if rows.holds_neural[row] else 1):
                hope = desk.hope[row, k] if k < CAP else 0.0
                plans.append((k, float(desk.neural[row, 1 : k + 1].sum() + hope)))
            for k in range(1, min(CAP, rows.available[row]) + 1):
                plans.append((k, float(desk.ngram[row, 1 : k + 1].sum())))
            choices.append(plans)
        for plan in itertools.product(*choices):
            tokens = len(choices) + sum(k for k, _ in plan)
            emitted = len(choices) + sum(worth for _, worth in plan)
            seconds = step_s(constants, tokens, context, forwards, holds)
            best = max(best, emitted - rate * seconds)
    return best


def planned(
    desk: Desk, knobs: np.ndarray, rows: Rows, cost: CostModel, rate: float, neural_cap: int
) -> float:
    """What the planner's own choice comes to by the same measure."""
    constants, count = cost.constants(), len(rows.slots)
    nothing = no_outlook()
    forwards = stages.forwards_of(desk, nothing, False, knobs, rows, constants, CAP, neural_cap)
    neural_len, ngram_len = np.zeros(count, np.int32), np.zeros(count, np.int32)
    stages.choose(desk, False, knobs, rows, constants, CAP, forwards, neural_len, ngram_len)
    assert not (neural_len.astype(bool) & ngram_len.astype(bool)).any()
    assert (neural_len <= np.where(rows.holds_neural, forwards, 0)).all()
    emitted = float(count)
    for row in range(count):
        k = neural_len[row]
        emitted += desk.neural[row, 1 : k + 1].sum() + desk.ngram[row, 1 : ngram_len[row] + 1].sum()
        if 0 < k < CAP:
            emitted += desk.hope[row, k]
    tokens = count + int(neural_len.sum() + ngram_len.sum())
    context = int((rows.prompt_tokens + rows.position).sum())
    holds = bool(rows.holds_neural.any())
    return emitted - rate * step_s(constants, tokens, context, forwards, holds)


def shortfalls(seed: int, batches: int, *, captured: bool) -> list[float]:
    """How much of the batch's best value per step the planner leaves, batch by batch."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(batches):
        count = int(rng.integers(1, 4))
        rows = random_rows(rng, count)
        desk, knobs = new_desk([MODEL], count), knob_row({})
        fill(rng, desk, rows)
        cost = random_cost(rng)
        if not captured:
            cost = CostModel(
                **{n: getattr(cost, n) for n in cost.__slots__ if n != "captured_sizes"}
            )
        context = int((rows.prompt_tokens + rows.position).sum())
        tokens, seconds = rng.uniform(0.5, 4) * count, cost.step_s(2 * count, context, 1, True)
        desk.pace[:3] = tokens * 500, seconds * 500, 500
        rate = float(rate_of(desk, knobs, cost.constants(), count, context))
        neural_cap = int(rng.integers(0, 5))
        best = exhaustive(desk, rows, cost, rate, neural_cap)
        got = planned(desk, knobs, rows, cost, rate, neural_cap)
        assert got <= best + 1e-9
        # Against what the step is about: tokens emitted and seconds priced in tokens.
        found.append((best - got) / (count + rate * cost.step_s(count, context, 0, False)))
    return found


def test_the_planner_is_within_1_percent_of_exhaustive_search() -> None:
    assert max(shortfalls(1, 2000, captured=False)) < 0.01


def futures(
    desk: Desk, outlook: Outlook, row: int, count: int, depth: int
) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """Every way in which the next `depth` tokens may turn out: its weight, survival, hopes."""
    neural, hope = desk.neural[row].copy(), desk.hope[row, 1:].copy()
    hope[CAP - 1 :] = 0.0
    told = []
    for k in range(count + 1, count + depth + 1):
        belief = neural[k] / neural[k - 1] if neural[k - 1] > 0 else 0.0
        factors = outlook.factors[np.searchsorted(outlook.edges, belief, side="right")]
        told.append([min(f, 1 / belief) if belief > 0 else 0.0 for f in factors])
    for path in itertools.product(*told):
        seen, hoped = neural.copy(), hope.copy()
        for k, factor in enumerate(path, count + 1):
            seen[k:] *= factor
            hoped[k - 1 :] *= factor
        yield 1 / len(outlook.factors[0]) ** depth, seen, hoped


def test_a_forward_is_worth_the_mean_of_the_best_plans_that_its_token_may_lead_to() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        count, most = int(rng.integers(0, 4)), int(rng.integers(4, 8))
        rows = random_rows(rng, 3)
        desk, price = new_desk([MODEL], 3), float(rng.uniform(0.02, 0.5))
        fill(rng, desk, rows)
        outlook = random_outlook(rng)
        weigh_ngram(desk, rows, price, CAP)
        weigh_batch(desk, outlook, True, rows, count, most, price, CAP)
        expected = np.zeros(most + 1)
        for row in range(3):
            for forwards in range(count, most + 1):
                paths = list(futures(desk, outlook, row, count, min(forwards - count, 2)))
                for weight, survives, hope in paths:
                    worth = np.cumsum(survives[1:] - price) + hope
                    best = max([desk.ngram_value[row], *worth[:forwards]])
                    expected[forwards] += weight * best
        np.testing.assert_allclose(desk.worth[count : most + 1], expected[count:], atol=1e-9)


def test_it_fills_captured_sizes_nearly_as_well_as_exhaustive_search() -> None:
    lost = shortfalls(2, 1000, captured=True)
    assert np.mean(lost) < 0.002
    assert np.quantile(lost, 0.95) < 0.001


def test_a_plateau_is_filled_and_what_lies_behind_it_is_paid_for() -> None:
    """Steps of up to 6 tokens take as long as one: so many are free, however unlikely."""
    cost = CostModel("flat start", 0.036, 0.003, 0.0, 0.0, 0.0, 0.0, 1, (6,))
    rows = random_rows(np.random.default_rng(0), 1)._replace(
        holds_neural=np.array([False]), available=np.array([40], np.int32)
    )
    desk, knobs, outlook = new_desk([MODEL], 1), knob_row({}), no_outlook()
    desk.ngram[0] = 0.5 ** np.arange(desk.ngram.shape[1])
    neural_len, ngram_len = np.zeros(1, np.int32), np.zeros(1, np.int32)
    constants = cost.constants()
    assert stages.forwards_of(desk, outlook, False, knobs, rows, constants, 40, 0) == 0
    stages.choose(desk, False, knobs, rows, constants, 40, 0, neural_len, ngram_len)
    assert ngram_len[0] == 5


def test_the_drafter_is_credited_with_the_copies_that_its_tokens_warn_of() -> None:
    """A row that verifies nothing, having heard its copy to be wrong, has saved that copy."""
    rows = random_rows(np.random.default_rng(0), 2)._replace(holds_neural=np.array([True, False]))
    desk, knobs = new_desk([MODEL], 2), knob_row({})
    desk.alone[:] = -0.4, 0.0
    nothing, one = np.zeros(2, np.int32), np.ones(2, np.int32)
    came = np.zeros((2, 1), np.int32)
    cost = CostModel("any", 0.01, 0.001, 0.0, 0.0, 0.001, 0.0, 1, ()).constants()
    everyone = np.ones(2, np.bool_)
    none_drafted = (nothing, nothing, nothing)
    stages.learn(desk, knobs, rows, cost, came, one, *none_drafted, everyone, 1, 0.013)
    assert desk.guard[CAME_OF_IT] == pytest.approx(0.4)
    assert desk.guard[EXPECTED] > 0


def test_what_the_target_never_judged_says_nothing_of_the_drafter() -> None:
    """A request that ended, a draft that was dropped, a row that is recorded or in the shadow."""
    rows = random_rows(np.random.default_rng(0), 2)._replace(holds_neural=np.ones(2, np.bool_))
    cost = CostModel("any", 0.01, 0.001, 0.0, 0.0, 0.001, 0.0, 1, ()).constants()
    knobs, nothing, came = knob_row({}), np.zeros(2, np.int32), np.zeros((2, 1), np.int32)

    def learned(emitted_tokens: list[int], judged: list[bool]) -> Desk:
        desk = new_desk([MODEL], 2)
        desk.alone[:] = 0.5
        counts, known = np.array(emitted_tokens, np.int32), np.array(judged)
        none_drafted = (nothing, nothing, nothing)
        stages.learn(desk, knobs, rows, cost, came, counts, *none_drafted, known, 0, 0.013)
        return desk

    both = learned([1, 1], [True, True])
    one, ended = learned([1, 1], [True, False]), learned([1, 0], [True, False])
    assert both.guard[CAME_OF_IT] == pytest.approx(-1.0)
    for desk in (one, ended):
        assert desk.guard[CAME_OF_IT] == pytest.approx(-0.5)
        assert 0 < desk.guard[EXPECTED] < both.guard[EXPECTED]
    assert one.pace[SUM_TOKENS] == 2
    assert ended.pace[SUM_TOKENS] == 1
    shadow, empty = learned([1, 1], [False, False]), learned([0, 0], [False, False])
    for desk in (shadow, empty):
        assert desk.guard[CAME_OF_IT] == desk.guard[EXPECTED] == 0
    assert shadow.pace[STEPS] == 1
    assert empty.pace[STEPS] == 0
