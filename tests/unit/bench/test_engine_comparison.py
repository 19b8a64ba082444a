"""Outputs of all methods must be those of no speculation, and speeds are of the same rounds."""

from dataclasses import asdict

import pytest
from made_rounds import answer

from adaspec.bench.engine.comparison import (
    MIN_ROUNDS,
    NOISE,
    Timing,
    first_difference,
    paired_ratio,
    timing,
)
from adaspec.bench.engine.comparison import differences as find_differences
from adaspec.bench.engine.report import complaint

KEY = ("chat", "7")


EXPECTED = {KEY: [5, 6, 7, 8]}


PROMPTS = {KEY: [1, 2]}


def differences(found, best, noise=1e-3, asked=None):
    def best_tokens(prompt):
        if asked is not None:
            asked.append(list(prompt))
        return best

    return find_differences(EXPECTED, [("eagle 3", KEY, found)], PROMPTS, best_tokens, noise)


def report(found):
    documents = [{"concurrency": 4, **asdict(each)} for each in found]
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
    assert "not among the target's best" in complaint(report(found))


@pytest.mark.parametrize("found", [[5, 6], [5, 6, 7, 8, 9]])
def test_an_output_that_ends_elsewhere_is_no_near_tie(found):
    assert [each.near_tie for each in differences(found, {7: -0.7, 8: -0.7, 9: -0.7})] == [False]


def test_the_same_difference_in_several_rounds_is_one():
    outputs = [("eagle 3", KEY, [5, 6, 9, 9])] * 3
    found = find_differences(EXPECTED, outputs, PROMPTS, lambda prompt: {7: -0.7, 9: -0.7}, 1e-3)
    assert len(found) == 1


def test_a_coarser_arithmetic_has_more_noise():
    assert NOISE["float32"] < NOISE["float16"] < NOISE["bfloat16"]


def test_throughput_ends_where_the_first_slot_stays_empty():
    # Two at once: the third is sent at 2 as the first ends; the second ends at 3 with none left.
    answers = [answer(0, [1, 2]), answer(0, [1, 2, 3]), answer(2, [3, 4, 5, 6])]
    found = timing(answers)
    assert found.seconds == 3
    assert found.tokens == 2 + 3 + 1
    assert found.first_s == (1, 1, 1)
    assert found.gap_s == (1,) * 6


def test_tokens_that_come_together_are_one_gap_and_many_tokens():
    found = timing([answer(0, [1, 2, 4], [1, 3, 2])])
    assert found.gap_s == (1, 2)
    assert found.token_s == (3 / 5,)
    assert (found.tokens, found.seconds) == (6, 4)


def round_of(tokens, seconds):
    return Timing(tokens, seconds, (), (), ())


def test_an_interval_holds_what_chance_alone_could_make_of_the_rounds():
    # Twice as fast in every round, however fast the machine is: no doubt is left.
    paces = [1.0 + 0.1 * (turn % 5) for turn in range(20)]
    slow = {turn: round_of(100, pace) for turn, pace in enumerate(paces)}
    fast = {turn: round_of(200, pace) for turn, pace in enumerate(paces)}
    assert paired_ratio(fast, slow, "x")["x_interval"] == pytest.approx([2.0, 2.0])
    # Faster in one half of the rounds, slower in the other: nothing is known.
    mixed = {turn: round_of(100, 0.5 if turn % 2 else 2.0) for turn in range(20)}
    even = {turn: round_of(100, 1.0) for turn in range(20)}
    found = paired_ratio(mixed, even, "x")
    low, high = found["x_interval"]
    assert low < 0.8 < high < 1.3
    assert found["x"] == pytest.approx(0.8)
    assert found["x_range"] == [0.5, 2.0]


def test_few_rounds_have_no_interval():
    few = {turn: round_of(100, 1.0) for turn in range(MIN_ROUNDS - 1)}
    assert paired_ratio(few, few, "x")["x_interval"] is None
    apart = paired_ratio(few, {99: round_of(100, 1.0)}, "x")
    assert apart == {"x": None, "x_range": None, "x_interval": None}
