"""The step-time formula."""

import dataclasses
import json
from dataclasses import fields
from pathlib import Path

import pytest

from adaspec.bench.decide import DecideRow, deciding_constants
from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.model import (
    ASYNC_DECIDING,
    Deciding,
    StepShape,
    deciding_s,
)

COST = H100_LLAMA_3_1_8B.without_deciding()


def test_a_step_costs_what_the_formula_says():
    fixed, per_token, per_kv = 5.88590713e-3, 2.10103129e-5, 3.92645679e-8
    by_hand = fixed + per_token * 8 + per_kv * 4_000 + 1.20683946e-3
    assert COST.step_s(StepShape(8, 4_000)) == pytest.approx(by_hand, rel=1e-12)
    one = 0.7118e-3 + 2.37768493e-9 * 4_000
    three = COST.step_s(StepShape(8, 4_000, forwards=3))
    assert three == pytest.approx(by_hand + 3 * one, rel=1e-12)


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
    names = [each.name for each in fields(DecideRow)]
    report = json.loads(path.read_text())["rows"]
    rows = [DecideRow(**{name: row[name] for name in names}) for row in report]
    measured = deciding_constants([row for row in rows if row.batch <= 128])
    for name, seconds in measured.items():
        assert getattr(H100_LLAMA_3_1_8B, name) == pytest.approx(seconds, rel=0.02), name
