import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from refusals import refusal

from adaspec.cli.main import run
from adaspec.cost.load import BUILTIN, DEFAULT, FitQuality, cost_document, save_cost
from adaspec.errors import AdaspecError
from adaspec.evaluate.inspection import NGRAM_CAP, inspect, ngram_accepted
from adaspec.policy.artifact import find_policy
from adaspec.trace.schema import Request
from adaspec.trace.writer import write_trace


@pytest.fixture
def trace(tmp_path):
    requests = [
        # Known: 1 2 3 4 1. The copy behind that 1 gives 2 3 4, then it repeats.
        Request("edits", "a", [1, 2, 3, 4], [1, 2, 3, 9], neural_accepted=[-1, 2, 1, 0]),
        Request("edits", "b", [5, 6], [7, 8], neural_accepted=[-1, 0]),
        # Another length than the output: recorded in another run.
        Request("chat", "c", [5, 6], [7, 8, 9], neural_accepted=[-1, 1]),
    ]
    write_trace(tmp_path / "trace", requests, target="t")
    return tmp_path / "trace"


@pytest.fixture
def policy(tmp_path):
    return shutil.copytree(find_policy("general"), tmp_path / "policy")


def source(found, workload, name):
    (one,) = [each for each in found["workloads"] if each["workload"] == workload]
    (sums,) = [each for each in one["sources"] if each["source"] == name]
    return sums


def test_a_trace_is_counted_per_workload_and_said_to_be_whole_or_not(trace):
    found = inspect(trace)
    edits, chat = found["workloads"]
    assert (edits["workload"], edits["requests"], edits["paired"]) == ("edits", 2, 2)
    assert (edits["prompt_tokens"], edits["output_tokens"]) == (6, 6)
    assert (chat["workload"], chat["requests"], chat["paired"]) == ("chat", 1, 0)
    assert found["sound"]
    # Positions 1..3 of a hold 2, 1, 0; position 1 of b holds 0.
    assert source(found, "edits", "neural") == {
        "source": "neural",
        "drafts": 4,
        "accepted_mean": 0.75,
        "accepted_share_at_least_1": 0.5,
    }
    # a: behind 1 the copy 2 3 4 holds for 2 3; behind 1 2 for 3; behind 1 2 3 for nothing.
    assert source(found, "edits", "ngram")["accepted_mean"] == (2 + 1 + 0 + 0) / 4
    (trace / "complete.json").unlink()
    cut_off = inspect(trace)
    assert not cut_off["sound"]
    assert "cut off" in cut_off["warnings"][0]


def test_ngram_acceptance_is_cut_so_that_a_runaway_request_does_not_drown_the_rest():
    copied = np.arange(100, 200, dtype=np.int32)
    runaway = Request("edits", "r", copied, copied)
    assert ngram_accepted(runaway).tolist() == [0] + [NGRAM_CAP] * 80 + list(range(19, 0, -1))


@pytest.mark.parametrize("name", ["trace", "policy"])
def test_the_command_prints_what_it_found_for_people_and_as_json(name, request, capsys):
    path = request.getfixturevalue(name)
    assert run(["inspect", str(path)]) == 0
    out, err = capsys.readouterr()
    assert str(path) in out
    assert f": {name}, " in out
    assert err == ""
    assert run(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == inspect(path)


def test_a_cost_model_by_file_or_builtin_name_is_shown_with_the_errors_of_its_fit(tmp_path, capsys):
    unknown = {"forward_s": "what it multiplies is 0 in every point"}
    fit = FitQuality(50, 10, 0.0213, 0.01, 0.0625, unknown)
    save_cost(BUILTIN[DEFAULT], tmp_path / "cost.json", fit)
    assert inspect(tmp_path / "cost.json")["cost"] == cost_document(BUILTIN[DEFAULT])
    assert inspect(Path(DEFAULT))["path"] is None
    assert run(["inspect", str(tmp_path / "cost.json")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "context_s 4.65e-08" in out
    assert "a step of 1 tokens 6.68 ms" in out
    assert "not identified: what it multiplies is 0 in every point" in out
    assert "2.1% median 1.0%, 95th percentile 6.2%, 10 of 50 points" in out


def test_a_folder_of_traces_is_none_and_names_them(trace, tmp_path):
    for name in "ba":
        shutil.copytree(trace, tmp_path / "live" / name)
    said = refusal(AdaspecError, inspect, tmp_path / "live")
    assert "is no trace, but a folder of 2: give one or several of" in said
