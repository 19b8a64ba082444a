"""Prompts that a policy was trained on are left out of a benchmark, and counted."""

import numpy as np
import pytest

from adaspec.bench.engine.traffic import Call
from adaspec.bench.engine.unseen import leave_out_trained, trained_on
from adaspec.bench.lookup import BenchError
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


def test_without_training_everything_stays(traces):
    assert leave_out_trained(calls(0, 1), traces, frozenset()) == (calls(0, 1), 0)
    assert trained_on(["hybrid-splice", "python:mine:Policy"]) == frozenset()


def test_a_shipped_policy_says_what_it_was_trained_on():
    assert len(trained_on(["llama-3.1-8b-instruct-h100", "none"])) > 100


def test_a_workload_of_which_nothing_is_left_is_named(traces):
    trained = frozenset({request_hash([7, 1], OUTPUT)})
    with pytest.raises(BenchError, match="workload 'chat': a policy was trained on all of its 1"):
        leave_out_trained(calls(1), traces, trained)
