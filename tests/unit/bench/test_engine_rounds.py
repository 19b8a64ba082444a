"""What a round is made of, what is timed of it, and what survives a kill."""

import json
import threading
import time

import pytest

from adaspec.bench.engine.apart import tell_apart
from adaspec.bench.engine.deck import deal
from adaspec.bench.engine.ledger import Entry, Ledger
from adaspec.bench.engine.paired import FEWEST_ROUNDS, paired_ratio
from adaspec.bench.engine.report import acceptance, headline, row, slowness, unsteady
from adaspec.bench.engine.traffic import Answer, Call, Timing, drive, timing
from adaspec.bench.lookup import BenchError
from adaspec.bench.machine import Pace


def call(workload, id):
    return Call(workload, str(id), (1, 2), 8)


def answer(sent, arrived, counts=None, id="0"):
    counts = counts or [1] * len(arrived)
    return Answer("w", id, sent, tuple(arrived), tuple(counts), tuple(range(sum(counts))))


PROMPTS = {name: [call(name, at) for at in range(10)] for name in ("a", "b")}


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
    assert found.tokens_per_s == 6 / 4


def test_calls_run_so_many_at_once_and_answers_keep_their_order():
    running, most, lock = [0], [0], threading.Lock()
    all_there = threading.Barrier(3, timeout=60)

    def stream(prompt, max_tokens):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        all_there.wait()
        yield time.perf_counter(), [7, 8]
        with lock:
            running[0] -= 1

    calls = [call("a", at) for at in range(9)]
    answers = drive(calls, 3, stream)
    assert [each.id for each in answers] == [each.id for each in calls]
    assert most[0] == 3
    assert all(each.tokens == (7, 8) and each.counts == (2,) for each in answers)


def test_a_server_that_fails_ends_the_round_with_its_error():
    def stream(prompt, max_tokens):
        raise BenchError("the server answered 500")
        yield

    with pytest.raises(BenchError, match="answered 500"):
        drive([call("a", at) for at in range(4)], 2, stream)


def test_no_prompt_comes_twice_before_all_have_come():
    dealt, repeated = deal(PROMPTS, ["a", "b"], rounds=1, requests=10, concurrency=1, seed=0)
    assert not repeated
    assert len({each.id for each in dealt[0, "a"]}) == 10
    assert deal(PROMPTS, ["a", "b"], 2, 10, 1, 0)[1]


def test_the_mix_is_of_all_workloads_alike_and_the_deal_follows_from_the_seed():
    dealt, _ = deal(PROMPTS, ["all", "a", "b"], 2, 4, 1, 0)
    assert sorted(each.workload for each in dealt[0, "all"]) == ["a", "a", "b", "b"]
    assert deal(PROMPTS, ["all", "a", "b"], 2, 4, 1, 0)[0] == dealt
    assert deal(PROMPTS, ["all", "a", "b"], 2, 4, 1, 1)[0] != dealt


def test_every_slot_is_filled_four_times_however_few_requests_are_asked_for():
    assert len(deal(PROMPTS, ["a"], 1, 1, 4, 0)[0][0, "a"]) == 16


def test_one_at_a_time_a_round_may_be_one_request_and_rounds_come_to_every_workload():
    dealt, _ = deal(PROMPTS, ["all"], rounds=4, requests=1, concurrency=1, seed=0)
    assert [[each.workload for each in dealt[turn, "all"]] for turn in range(4)] == [
        ["a"],
        ["b"],
        ["a"],
        ["b"],
    ]


def entry(turn=0, entrant="none"):
    return Entry(1, turn, "all", entrant, 6.0, 4.0, (answer(0, [1, 2]),))


def test_a_killed_benchmark_finds_its_rounds_again(tmp_path):
    path = tmp_path / "rounds.jsonl"
    Ledger(path, {"seed": 0}).add(entry())
    again = Ledger(path, {"seed": 0})
    assert entry().key in again
    assert entry(turn=1).key not in again
    assert list(again) == [entry()]
    assert path.stat().st_mode & 0o777 == 0o600


def test_more_rounds_go_on_where_fewer_ended(tmp_path):
    fewer, more = (deal(PROMPTS, ["a", "b"], rounds, 10, 1, 0)[0] for rounds in (1, 3))
    assert {key: more[key] for key in fewer} == fewer
    ledger = Ledger(tmp_path / "rounds.jsonl", {"seed": 0})
    for turn in range(3):
        ledger.add(entry(turn))
    assert ledger.first_rounds(1) == [entry(0)]
    assert ledger.first_rounds(3) == list(ledger)


def test_a_torn_last_line_is_measured_again_and_nothing_else(tmp_path):
    path = tmp_path / "rounds.jsonl"
    ledger = Ledger(path, {"seed": 0})
    ledger.add(entry(0))
    ledger.add(entry(1))
    path.write_bytes(path.read_bytes()[:-30])
    again = Ledger(path, {"seed": 0})
    assert list(again) == [entry(0)]
    again.add(entry(1))
    assert list(Ledger(path, {"seed": 0})) == [entry(0), entry(1)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_another_benchmarks_rounds_are_refused_with_what_differs(tmp_path):
    path = tmp_path / "rounds.jsonl"
    Ledger(path, {"seed": 0, "model": "M"}).add(entry())
    with pytest.raises(BenchError, match="other seed"):
        Ledger(path, {"seed": 1, "model": "M"})


def test_a_damaged_ledger_is_said_to_be_so(tmp_path):
    path = tmp_path / "rounds.jsonl"
    Ledger(path, {"seed": 0})
    with path.open("a") as file:
        file.write('{"concurrency": 1}\n')
    with pytest.raises(BenchError, match="damaged"):
        Ledger(path, {"seed": 0})


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
    own, again = tell_apart(dealt, entries)
    assert sorted(own) == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]
    assert own[2, "a"] == dealt[2, "all"]
    assert [(each.round, each.workload) for each in again] == [
        (0, "a"),
        (1, "b"),
        (2, "a"),
        (3, "b"),
    ]


def test_rounds_of_several_workloads_or_of_none_but_one_tell_nothing_more():
    several, _ = deal(PROMPTS, ["all"], rounds=2, requests=2, concurrency=1, seed=0)
    assert tell_apart(several, [entry()]) == ({}, [])
    alone, _ = deal({"a": PROMPTS["a"]}, ["all"], rounds=2, requests=1, concurrency=1, seed=0)
    assert tell_apart(alone, [entry()]) == ({}, [])
    apart_already, _ = deal(PROMPTS, ["all", "a", "b"], 2, 1, 1, 0)
    assert tell_apart(apart_already, [entry()]) == ({}, [])


def round_of(tokens, seconds):
    return Timing(tokens, seconds, (), (), ())


def test_an_interval_holds_what_chance_alone_could_make_of_the_rounds():
    # Twice as fast in every round, however fast the machine is: no doubt is left.
    paces = [1.0 + 0.1 * (turn % 5) for turn in range(20)]
    slow = {turn: round_of(100, pace) for turn, pace in enumerate(paces)}
    fast = {turn: round_of(200, pace) for turn, pace in enumerate(paces)}
    assert paired_ratio(fast, slow).interval == pytest.approx((2.0, 2.0))
    # Faster in one half of the rounds, slower in the other: nothing is known.
    mixed = {turn: round_of(100, 0.5 if turn % 2 else 2.0) for turn in range(20)}
    even = {turn: round_of(100, 1.0) for turn in range(20)}
    low, high = paired_ratio(mixed, even).interval
    assert low < 0.8 < high < 1.3
    assert paired_ratio(mixed, even).ratio == pytest.approx(0.8)
    assert paired_ratio(mixed, even).range == (0.5, 2.0)


def test_few_rounds_have_no_interval():
    few = {turn: round_of(100, 1.0) for turn in range(FEWEST_ROUNDS - 1)}
    assert paired_ratio(few, few).interval is None
    assert paired_ratio(few, {99: round_of(100, 1.0)}) is None


def test_acceptance_counts_no_token_beyond_an_outputs_end():
    # Steps of 3, 1 and 2 tokens behind the prefill's; of 9 drafted, vLLM accepted 6, 3 of them
    # behind the end.
    one = Entry(1, 0, "all", "x", 9.0, 6.0, (answer(0, [1, 2, 3, 4], [1, 3, 1, 2]),))
    assert acceptance([one]) == {
        "accepted_per_step": 1.0,
        "drafted_per_step": 3.0,
        "acceptance": pytest.approx(2 / 3),
    }
    none = Entry(1, 0, "all", "none", 0.0, 0.0, (answer(0, [1, 2, 3]),))
    assert acceptance([none]) == {
        "accepted_per_step": 0.0,
        "drafted_per_step": 0.0,
        "acceptance": None,
    }


def test_a_machine_that_slowed_down_between_methods_is_told():
    def visit(turn, entrant, pace_s):
        return Entry(1, turn, "all", entrant, 6.0, 4.0, (answer(0, [1, 2]),), pace_s)

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
    assert Pace().seconds() > 0


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
