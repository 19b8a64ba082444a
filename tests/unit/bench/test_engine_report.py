"""What a report says of the rounds."""

import pytest
from made_rounds import PROMPTS, answer, entry

from adaspec.bench.engine.comparison import timing
from adaspec.bench.engine.prompts import deal
from adaspec.bench.engine.report import (
    acceptance,
    headline,
    rounds_by_workload,
    row,
    slowness,
    unsteady,
)
from adaspec.bench.engine.rounds import Round
from adaspec.bench.machine import memory_read_s


def test_ratios_are_of_the_rounds_that_both_have():
    slow, fast = timing([answer(0, [2, 4])]), timing([answer(0, [1, 2])])
    found = row({0: fast, 1: fast, 2: slow}, {0: slow, 1: fast})
    assert found["speedup"] == pytest.approx((4 / 4) / (4 / 6))
    assert found["speedup_range"] == [1.0, 2.0]
    assert found["rounds"] == 3
    assert row({0: fast}, {})["speedup"] is None


def test_rounds_of_one_workload_each_tell_of_it_alone():
    dealt, _ = deal(PROMPTS, ["all"], rounds=4, requests=1, concurrency=1, seed=0)
    entries = [entry(turn) for turn in range(4)]
    own, again = rounds_by_workload(dealt, entries)
    assert sorted(own) == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]
    assert own[2, "a"] == dealt[2, "all"]
    assert [(each.number, each.cell) for each in again] == [
        (0, "a"),
        (1, "b"),
        (2, "a"),
        (3, "b"),
    ]


def test_rounds_of_several_workloads_or_of_none_but_one_tell_nothing_more():
    several, _ = deal(PROMPTS, ["all"], rounds=2, requests=2, concurrency=1, seed=0)
    assert rounds_by_workload(several, [entry()]) == ({}, [])
    alone, _ = deal({"a": PROMPTS["a"]}, ["all"], rounds=2, requests=1, concurrency=1, seed=0)
    assert rounds_by_workload(alone, [entry()]) == ({}, [])
    already, _ = deal(PROMPTS, ["all", "a", "b"], 2, 1, 1, 0)
    assert rounds_by_workload(already, [entry()]) == ({}, [])


def test_acceptance_counts_no_token_beyond_an_outputs_end():
    # Steps of 3, 1 and 2 tokens behind the prefill's; of 9 drafted, vLLM accepted 6, 3 of them
    # behind the end.
    one = Round(1, 0, "all", "x", 9.0, 6.0, (answer(0, [1, 2, 3, 4], [1, 3, 1, 2]),))
    assert acceptance([one]) == {
        "accepted_per_step": 1.0,
        "drafted_per_step": 3.0,
        "acceptance": pytest.approx(2 / 3),
    }
    none = Round(1, 0, "all", "none", 0.0, 0.0, (answer(0, [1, 2, 3]),))
    assert acceptance([none]) == {
        "accepted_per_step": 0.0,
        "drafted_per_step": 0.0,
        "acceptance": None,
    }


def test_a_machine_that_slowed_down_between_methods_is_told():
    def visit(turn, candidate, pace_s):
        return Round(1, turn, "all", candidate, 6.0, 4.0, (answer(0, [1, 2]),), pace_s)

    none = {0: visit(0, "none", 0.02), 1: visit(1, "none", 0.02)}
    slow = {0: visit(0, "slow", 0.02), 1: visit(1, "slow", 0.03), 2: visit(2, "slow", 9.0)}
    assert slowness(slow, none) == pytest.approx(1.25)
    assert slowness({0: entry()}, none) is None
    rows = [
        {"concurrency": 1, "workload": cell, "machine": pace}
        for cell, pace in (("all", 1.0), ("all", 1.25), ("chat", 1.0), ("chat", 1.01), ("x", None))
    ]
    said = list(unsteady(rows))
    assert len(said) == 1
    assert "1 at once, all: the machine itself was up to 25% slower" in said[0]


def test_a_read_of_memory_takes_its_time():
    assert memory_read_s() > 0


def test_the_headline_holds_adaspec_against_the_best_static_setting():
    def one(method, setting, speed, expected=None):
        return {
            "workload": "all",
            "concurrency": 1,
            "method": method,
            "setting": setting,
            "speedup": speed / 10,
            "expected_error": expected,
            "adaspec_over": None if method == "adaspec" or not ours else 13.0 / speed,
            "adaspec_over_range": (0.9, 1.3) if method == "neural" else None,
            "adaspec_over_interval": (1.0, 1.2) if method == "neural" else None,
        }

    ours = True

    rows = [
        one("none", "", 10.0, 0.0),
        one("neural", "eagle 3", 12.0, 0.05),
        one("hybrid-splice", "4:20", 11.0, -0.2),
        one("suffix", "vLLM's defaults", 20.0),
        one("adaspec", "mine", 13.0, 0.1),
    ]
    found = headline(rows, 1, "all")
    assert found["best_static"] == "neural eagle 3"  # suffix adapts by itself
    assert found["adaspec_over_best_static"] == pytest.approx(13 / 12)
    assert found["adaspec_over_best_static_interval"] == (1.0, 1.2)
    assert found["adaspec_over_best_static_range"] == (0.9, 1.3)
    assert found["adaspec_over_none"] == pytest.approx(1.3)
    assert (found["expected_right"], found["expected_known"]) == (2, 3)
    ours = False
    rows = [one("none", "", 10.0), one("neural", "eagle 3", 12.0)]
    found = headline(rows, 1, "all")
    assert found["best_static"] == "neural eagle 3"
    assert found["adaspec_over_best_static"] is found["adaspec_over_none"] is None
