"""The step-time formula."""

import dataclasses

import pytest

from adaspec.cost.builtin import BUILTIN, H100_LLAMA_3_1_8B
from adaspec.cost.model import StepShape, forward_s, padded, paid_forwards, verify_s

COST = H100_LLAMA_3_1_8B


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
    whole = verify_s(row, shape) + paid_forwards(row, 2, True) * forward_s(row, 900)
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


def test_without_captured_sizes_every_token_counts():
    assert [padded(COST.constants(), n) for n in (1, 7, 129)] == [1, 7, 129]


def test_every_builtin_model_is_named_as_it_is_listed():
    assert all(cost.name == name for name, cost in BUILTIN.items())
