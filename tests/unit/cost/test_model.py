"""The step-time formula."""

import dataclasses
import json
from pathlib import Path

import pytest

from adaspec.bench.decide import DecideRow, deciding_constants
from adaspec.cost.builtin import BUILTIN, H100_LLAMA_3_1_8B
from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.model import (
    ASYNC_DECIDING,
    Deciding,
    StepShape,
    deciding_s,
    forward_s,
    padded,
    paid_forwards,
    verify_s,
)

COST = H100_LLAMA_3_1_8B.without_deciding()


def test_a_plain_step_costs_what_the_formula_says():
    by_hand = 5.88590713e-3 + 2.10103129e-5 * 8 + 3.92645679e-8 * 4_000 + 1.20683946e-3
    assert COST.step_s(StepShape(8, 4_000)) == pytest.approx(by_hand, rel=1e-12)


def test_each_forward_is_charged_once_for_the_whole_batch():
    plain = COST.step_s(StepShape(32, 50_000))
    one = 0.7118e-3 + 2.37768493e-9 * 50_000
    assert COST.step_s(StepShape(32, 50_000, forwards=3)) - plain == pytest.approx(
        3 * one, rel=1e-9
    )


def test_a_step_is_its_verification_and_its_forwards():
    row = COST.constants()
    shape = StepShape(2, 900, copied=5, neural=3, spliced=2, forwards=2, holds_neural=True)
    whole = verify_s(row, shape) + paid_forwards(row, 2, True) * forward_s(row, 2, 900)
    assert COST.step_s(shape) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(
    ("forwards", "holds", "keep_alive", "paid"),
    [(0, True, 1, 1), (0, False, 1, 0), (3, True, 1, 3), (0, True, 0, 0), (1, True, 2, 2)],
)
def test_the_keep_alive_is_a_floor_where_a_request_holds_the_drafter(
    forwards, holds, keep_alive, paid
):
    row = dataclasses.replace(COST, keep_alive_forwards=keep_alive).constants()
    assert paid_forwards(row, forwards, holds) == paid


@pytest.mark.parametrize(
    ("tokens", "held_by"), [(1, 1), (2, 4), (4, 4), (5, 16), (16, 16), (17, 17), (300, 300)]
)
def test_tokens_are_padded_to_the_next_captured_size_and_beyond_the_last_not_at_all(
    tokens, held_by
):
    row = dataclasses.replace(COST, captured_sizes=(1, 4, 16)).constants()
    assert padded(row, tokens) == held_by


def test_every_builtin_model_is_named_as_it_is_listed():
    assert all(cost.name == name for name, cost in BUILTIN.items())


DECIDES = dataclasses.replace(
    COST,
    lookup_s=1.0,
    lookup_per_row_s=0.1,
    decide_s=10.0,
    decide_per_row_s=2.0,
    listen_s=100.0,
    revise_s=1000.0,
    revise_per_row_s=200.0,
    async_lookup_s=0.5,
    async_decide_s=5.0,
    async_revise_s=50.0,
)


@pytest.mark.parametrize(
    ("deciding", "sync", "late"),
    [
        (Deciding.NOTHING, 0.0, 0.0),
        (Deciding.LOOKUP, 1.4, 0.5),
        (Deciding.THRESHOLD, 1.4 + 2 * 100, 0.5),
        (Deciding.PLAN, 18.0, 5.0),
        (Deciding.REVISION, 18.0 + 2 * (100 + 1000 + 4 * 200), 5.0 + 2 * 50),
    ],
)
def test_deciding_is_charged_to_who_does_it(deciding, sync, late):
    shape = StepShape(4, 900, copied=5, neural=3, forwards=2, holds_neural=True)
    for engine, seconds in ((SYNC, sync), (ASYNC, late)):
        under = DECIDES.under(engine)
        charged = under.charged_to(deciding)
        assert charged.step_s(shape) - COST.under(engine).step_s(shape) == pytest.approx(seconds)
        assert deciding_s(charged.constants(), shape) == pytest.approx(seconds)
        assert under.under(engine) == under
        free = DECIDES.without_deciding().under(engine).charged_to(deciding)
        assert free.step_s(shape) == COST.under(engine).step_s(shape)


def test_what_a_file_says_of_sync_engines_alone_holds_in_async_ones():
    known = DECIDES.with_deciding(dict.fromkeys(ASYNC_DECIDING))
    assert known.under(ASYNC).decide_per_row_s == DECIDES.decide_per_row_s


def test_the_builtin_costs_of_deciding_are_those_of_the_report():
    path = Path(__file__).parents[3] / "eval" / "reports" / "decide" / "report.json"
    if not path.exists():
        pytest.skip("eval/ is not here: a source distribution leaves it out")
    rows = [DecideRow(**row) for row in json.loads(path.read_text())["rows"]]
    measured = deciding_constants([row for row in rows if row.batch <= 128])
    for name, seconds in measured.items():
        assert getattr(H100_LLAMA_3_1_8B, name) == pytest.approx(seconds, rel=0.02), name
