"""Outputs of all methods must be those of no speculation, but for near-ties."""

import pytest

from adaspec.bench.engine.agreement import NOISE, compare, first_difference
from adaspec.bench.engine.report import complaint

KEY = ("chat", "7")
EXPECTED = {KEY: [5, 6, 7, 8]}
PROMPTS = {KEY: [1, 2]}


def differences(found, best, noise=1e-3, asked=None):
    def best_tokens(prompt):
        if asked is not None:
            asked.append(list(prompt))
        return best

    return compare(EXPECTED, [("eagle 3", KEY, found)], PROMPTS, best_tokens, noise)


def report(found):
    documents = [{"concurrency": 4, **each.document()} for each in found]
    return {"differences": documents}


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [4], 0), ([], [], None)],
)
def test_the_first_difference_is_found(one, other, at):
    assert first_difference(one, other) == at


def test_equal_outputs_ask_the_target_nothing():
    asked = []
    assert differences([5, 6, 7, 8], {}, asked=asked) == []
    assert asked == []


def test_a_near_tie_is_listed_and_is_no_fault():
    asked = []
    found = differences([5, 6, 9, 9], {7: -0.7000, 9: -0.7004}, asked=asked)
    assert asked == [[1, 2, 5, 6]]
    assert [each.near_tie for each in found] == [True]
    assert (found[0].position, found[0].expected, found[0].found) == (2, 7, 9)
    assert found[0].margin == pytest.approx(4e-4)
    assert complaint(report(found)) is None


def test_a_clear_difference_fails_and_names_the_request():
    found = differences([5, 6, 9, 9], {7: -0.1, 9: -2.5})
    assert not found[0].near_tie
    said = complaint(report(found))
    assert "concurrency 4" in said
    assert "eagle 3, request chat/7" in said
    assert "token 2 is 9, without speculation 7" in said


def test_a_tie_between_two_others_is_no_excuse():
    # Both are as likely as each other, but a third token is the best by far.
    assert not differences([5, 6, 9, 9], {3: -0.1, 7: -2.0, 9: -2.0})[0].near_tie


def test_a_token_that_the_target_hardly_knows_is_no_near_tie():
    found = differences([5, 6, 9, 9], {7: -0.1, 3: -0.1})
    assert found[0].margin is None
    assert not found[0].near_tie
    assert "not among the target's best" in str(found[0])


@pytest.mark.parametrize("found", [[5, 6], [5, 6, 7, 8, 9]])
def test_an_output_that_ends_elsewhere_is_no_near_tie(found):
    assert [each.near_tie for each in differences(found, {7: -0.7, 8: -0.7, 9: -0.7})] == [False]


def test_the_same_difference_in_several_rounds_is_one():
    outputs = [("eagle 3", KEY, [5, 6, 9, 9])] * 3
    found = compare(EXPECTED, outputs, PROMPTS, lambda prompt: {7: -0.7, 9: -0.7}, 1e-3)
    assert len(found) == 1


def test_a_coarser_arithmetic_has_more_noise():
    assert NOISE["float32"] < NOISE["float16"] < NOISE["bfloat16"]
