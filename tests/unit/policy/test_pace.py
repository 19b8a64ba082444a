"""What a token costs where steps are padded."""

import dataclasses

import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.policy.pace import token_s


@pytest.mark.parametrize("sizes", [(), (6,), (32,), (1, 2, 4, 8, 16)])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 40])
def test_no_plateau_makes_all_further_tokens_free(rows, sizes):
    cost = dataclasses.replace(H100_LLAMA_3_1_8B, captured_sizes=sizes)
    price = token_s(cost.constants(), rows)
    assert 0.49 * cost.per_token_s < price < 1.8 * cost.per_token_s


def test_without_captured_sizes_a_token_costs_what_the_model_says():
    for rows in (1, 8, 128):
        price = token_s(H100_LLAMA_3_1_8B.constants(), rows)
        assert price == pytest.approx(H100_LLAMA_3_1_8B.per_token_s)
