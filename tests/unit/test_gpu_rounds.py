"""eval/gpu: which requests are run, and what is made of the rounds."""

import sys

import pytest
from checkout import CHECKOUT, need

from adaspec.cost.load import load_cost

need("eval")
pytest.importorskip("torch", reason="an engine's stages need torch")
sys.path.append(str(CHECKOUT / "eval" / "gpu"))

from figures import headline_of, rows  # noqa: E402
from lossless import compared, verdict  # noqa: E402
from steps import COLUMNS  # noqa: E402

COST = load_cost("h100-llama-3.1-8b")


def ran(method, number, speed, load=8, steps=(), workload="llama"):
    usual = dict.fromkeys(COLUMNS, 0) | {"ms": 10.0, "rows": load, "answers": load}
    usual |= {"guard_state": None, "head_mode": None}
    usual |= {"tokens": load, "mode": "FULL", "context": 100 * load, "emitted": load}
    made = [usual | each for each in steps or ({},)]
    return {
        "method": method,
        "round": number,
        "load": load,
        "workload": workload,
        "tokens_per_s": speed,
        "tokens": sum(each["emitted"] for each in made),
        "preempted": 0,
        "faults": {},
        "largest_graph": 512,
        "steps": {name: [each[name] for each in made] for name in COLUMNS},
    }


def test_a_row_is_the_median_of_its_rounds_and_keeps_each():
    runs = [ran("none", at, speed) for at, speed in enumerate((10.0, 20.0, 40.0), 1)]
    runs += [ran("eagle3-2", at, speed) for at, speed in enumerate((30.0, 20.0, 100.0), 1)]
    runs += [ran("adaspec", at, speed) for at, speed in enumerate((30.0, 60.0), 1)]
    runs += [ran("none", 1, 5.0, load=1)]
    alone, ours, eagle, none = rows(runs, COST)
    assert (alone["load"], alone["tokens_per_s"], alone["by_round"]) == (1, 5.0, [5.0])
    assert (none["tokens_per_s"], eagle["tokens_per_s"], ours["tokens_per_s"]) == (20, 30, 45)
    line = headline_of([ours, eagle, none])
    assert (line["best_eagle3"], line["best_vllm"]) == ("eagle3-2", "eagle3-2")
    over = line["over"]["adaspec"]
    assert over["none"] == {"ratio": 2.25, "least": 3.0, "most": 3.0}
    assert over["vllm"] == {"ratio": 1.5, "least": 1.0, "most": 3.0}
    assert headline_of([ours])["over"]["adaspec"] == {"none": None, "eagle3": None, "vllm": None}


def test_only_nearly_tied_tokens_may_differ():
    likely = [{1: -0.1, 2: -3.0}, {5: -0.7, 6: -0.7001}, {3: -0.1}]
    expected = [([1, 5, 3], likely)] * 4
    found = [([1, 5, 3], []), ([1, 6, 9], []), ([2, 5, 3], []), ([1, 5], [])]
    result = compared(expected, found, 1e-3)
    assert (result["equal"], result["near_tie"], result["different"]) == (1, 1, 2)
    assert [each["place"] for each in result["differences"]] == [0, 2]


def test_a_check_that_saw_nothing_is_no_success():
    taken = {"ngram": 3, "neural": 3, "splice": 3}
    good = {"seed": 1, "equal": 9, "near_tie": 0, "different": 0, "taken": taken, "faults": {}}
    assert verdict([good])["problems"] == []
    assert verdict([good, {"faults": {"plan": 3}}])["problems"] == []
    bad = [{"different": 1}, {"faults": {"plan": 1}}, {"taken": taken | {"splice": 0}}]
    for rounds in ([good, {"faults": {}}], *([good | each] for each in bad)):
        assert len(verdict(rounds)["problems"]) == 1
