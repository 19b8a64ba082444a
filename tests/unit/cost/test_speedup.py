"""Expected speedup by one acceptance rate."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaspec.cli.main import run
from adaspec.cost.speedup import expected_speedup, sweep


@pytest.mark.parametrize(
    ("alpha", "k", "published"),
    [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ],
)
def test_a_free_drafter_gives_the_published_speedups(alpha, k, published):
    # Table 1 of Leviathan et al., arXiv 2211.17192.
    assert expected_speedup(alpha, 0.0, k) == pytest.approx(published, abs=0.005)


@given(st.floats(0, 0.99), st.floats(0, 2), st.integers(0, 32))
def test_the_sum_is_the_closed_form(alpha, c, k):
    closed = (1 - alpha ** (k + 1)) / ((1 - alpha) * (c * k + 1))
    assert expected_speedup(alpha, c, k) == pytest.approx(closed)


def test_drafts_that_are_always_right_emit_all_of_them_and_one_more():
    assert expected_speedup(1.0, 0.25, 4) == 5 / 2


def test_one_best_length_is_marked_for_each_alpha_and_c():
    points = sweep([0.0, 0.7], [0.1], [1, 3, 4, 8])
    best = {point.alpha: point.k for point in points if point.best}
    assert best == {0.0: 0, 0.7: 4}
    assert [point.k for point in points if point.alpha == 0.7] == [0, 1, 3, 4, 8]


def test_the_shorter_of_two_equal_drafts_is_the_best():
    # (1 + 0.5) / 1.5 = 1, as without speculation.
    assert [point.k for point in sweep([0.5], [0.5], [1]) if point.best] == [0]


def test_the_command_marks_the_best_length(capsys):
    assert run(["estimate", "speedup", "--alpha", "0.9,0", "--c", "0.1", "--k", "2,1"]) == 0
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(head) == "c alpha k = 1 k = 2 best k"
    assert rows == [["0.1", "0", "0.91", "0.83", "0"], ["0.1", "0.9", "1.73", "2.26*", "2"]]


def test_the_commands_json_is_the_sweep(capsys):
    assert run(["estimate", "speedup", "--alpha", "0.5", "--c", "0", "--k", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "rows": [
            {"alpha": 0.5, "c": 0.0, "k": 0, "speedup": 1.0, "best": False},
            {"alpha": 0.5, "c": 0.0, "k": 1, "speedup": 1.5, "best": True},
        ],
    }


@pytest.mark.parametrize(
    ("option", "value"),
    [("--alpha", "1.1"), ("--alpha", "0.5,"), ("--c", "-1"), ("--c", "nan"), ("--k", "0")],
)
def test_a_number_that_means_nothing_is_refused_in_one_line(capsys, option, value):
    assert run(["estimate", "speedup", option, value]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert option in err
