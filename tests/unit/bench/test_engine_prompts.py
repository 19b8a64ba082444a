"""Which prompts are sent: none that a policy was trained on, and the same to every method."""

import numpy as np
import pytest
from made_rounds import PROMPTS

from adaspec.bench.engine.client import Call
from adaspec.bench.engine.prompts import deal, leave_out_trained, trained_on
from adaspec.errors import BenchError
from adaspec.trace.identity import request_hash
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import Request
from adaspec.trace.writer import TraceWriter

OUTPUT = np.arange(20, dtype=np.int32)


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    with TraceWriter(folder, Manifest(kind="dense")) as writer:
        for at in range(3):
            prompt = np.array([7, at], np.int32)
            writer.add(Request("chat", str(at), prompt_tokens=prompt, output_tokens=OUTPUT))
    return [folder]


def calls(*numbers):
    return {"chat": [Call("chat", str(at), (7, at), 8) for at in numbers]}


def test_what_was_trained_on_is_left_out_whatever_it_is_called_here(traces):
    trained = frozenset({request_hash([7, 1], OUTPUT)})
    kept, left_out = leave_out_trained(calls(0, 1, 5), traces, trained)
    assert ([call.prompt for call in kept["chat"]], left_out) == ([(7, 0), (7, 5)], 1)


def test_without_training_or_traces_everything_stays(traces):
    assert leave_out_trained(calls(0, 1), traces, frozenset()) == (calls(0, 1), 0)
    trained = frozenset({request_hash([7, 1], OUTPUT)})
    assert leave_out_trained(calls(0, 1), [], trained) == (calls(0, 1), 0)
    assert trained_on(["hybrid-splice", "python:mine:Policy"]) == frozenset()


def test_a_shipped_policy_says_what_it_was_trained_on():
    assert len(trained_on(["llama-3.1-8b-instruct-h100", "none"])) > 100


def test_a_workload_of_which_nothing_is_left_is_named(traces):
    trained = frozenset({request_hash([7, 1], OUTPUT)})
    with pytest.raises(BenchError, match="workload 'chat': a policy was trained on all of its 1"):
        leave_out_trained(calls(1), traces, trained)


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
