"""Cost models with constants multiplied, for stress tests."""

import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B as COST
from adaspec.cost.check import scaled
from adaspec.errors import CostError


def test_only_the_named_constants_change_and_the_name_says_so():
    stressed = scaled(COST, {"per_token_s": 2.0, "draft_fixed_s": 0.5})
    assert stressed.per_token_s == 2 * COST.per_token_s
    assert stressed.draft_fixed_s == COST.draft_fixed_s / 2
    assert (stressed.fixed_s, stressed.per_kv_s) == (COST.fixed_s, COST.per_kv_s)
    assert stressed.name == "h100-llama-3.1-8b x (2 per_token_s, 0.5 draft_fixed_s)"


def test_no_factors_leave_the_model_as_it_is():
    assert scaled(COST, {}) == COST


def test_an_unknown_constant_is_answered_with_the_nearest():
    with pytest.raises(CostError, match="did you mean 'per_token_s'"):
        scaled(COST, {"per_tokens": 2.0})


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_factor_that_leaves_no_sound_model_is_refused(factor):
    with pytest.raises(CostError):
        scaled(COST, {"fixed_s": factor})
