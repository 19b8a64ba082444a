"""What a token costs where steps are padded."""

import dataclasses

import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.policy.pace import token_s


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 40])
@pytest.mark.parametrize("sizes", [(), (6,), (32,)])
def test_padding_that_few_tokens_fill_does_not_make_many_free(rows, sizes):
    cost = dataclasses.replace(H100_LLAMA_3_1_8B, captured_sizes=sizes)
    assert token_s(cost.constants(), rows) == pytest.approx(cost.per_token_s)


def test_between_captured_sizes_a_token_costs_about_what_it_does_without():
    sizes = (1, 2, 4, *range(8, 513, 8))
    cost = dataclasses.replace(H100_LLAMA_3_1_8B, captured_sizes=sizes)
    for rows in range(1, 100):
        assert 0.7 < token_s(cost.constants(), rows) / cost.per_token_s < 1.8
