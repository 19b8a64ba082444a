"""eval/gpu: which requests are run, and what is made of the rounds."""

import json
import subprocess
import sys

import pytest
from checkout import CHECKOUT, need

from adaspec.cost.load import load_cost

need("eval")
pytest.importorskip("torch", reason="an engine's stages need torch")
sys.path.append(str(CHECKOUT / "eval" / "gpu"))

import rounds as rounds_module  # noqa: E402
from figures import bounded, headline_of, rejected, rows  # noqa: E402
from results import Lines  # noqa: E402
from steps import COLUMNS  # noqa: E402

COST = load_cost("h100-llama-3.1-8b")


def ran(method, number, speed, load=8, steps=()):
    usual = dict.fromkeys(COLUMNS, 0) | {"ms": 10.0, "rows": load, "answers": load}
    usual |= {"guard_state": None, "head_mode": None}
    usual |= {"tokens": load, "mode": "FULL", "context": 100 * load, "emitted": load}
    made = [usual | each for each in steps or ({},)]
    return {
        "method": method,
        "round": number,
        "load": load,
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


def test_what_rejected_drafts_and_a_bound_cost_is_by_load():
    steps = [{"ms": 9.0}, {"ms": 13.0}, {"ms": 99.0, "prompt": 5}]
    cells = [ran("none", 1, 100.0) | {"stage": "rejected"}]
    cells += [ran("adaspec", 1, 90.0) | {"stage": "rejected"}]
    cells += [ran("adaspec", 1, 80.0, steps=steps) | {"stage": "round"}]
    cells += [ran("adaspec", 1, 70.0, steps=steps[:1]) | {"stage": "bounded", "bound_ms": 12.0}]
    (line,) = rejected(cells)
    assert (line["load"], line["share"], line["drafted_per_row"]) == (8, 0.9, 0.0)
    (line,) = bounded(cells)
    assert (line["beyond"], line["tokens_per_s"]) == ([0.5, 0.0], [80.0, 70.0])


ANSWERING = """
import sys
print('{"ready": {}}', flush=True)
for _ in sys.stdin:
    print('{"cell": {"steps": {"ms": [8.0]}}}', flush=True)
"""


def test_an_engine_that_hangs_is_left_out_and_the_others_are_measured(tmp_path, monkeypatch):
    def process(words, *_):
        hangs = "adaspec" in words[-1]
        program = [sys.executable, "-c", "import time; time.sleep(99)" if hangs else ANSWERING]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(program, start_new_session=True, **pipes)

    monkeypatch.setattr(rounds_module, "_process", process)
    monkeypatch.setattr(rounds_module, "LOSSLESS_S", 0.0)
    plan = rounds_module.Plan({1: 2}, {}, {}, "target", "head")
    engines = [
        rounds_module.Served(rounds_module.Engine(name), {}, tmp_path, None)
        for name in ("none", "adaspec")
    ]
    measured = rounds_module.Measurement(plan, Lines(tmp_path / "lines", {}), engines, False)
    measured.begin(process(["other"]), start_s=5.0)
    measured.rounds([1], measured.until_s + 1e9)
    measured.after_rounds()
    rounds_module.end(engines[0].process)
    assert engines[1].process.poll() is not None
    _, *lines = map(json.loads, (tmp_path / "lines").read_text().splitlines())
    assert "said nothing" in lines[1]["error"]
    assert [(line["stage"], line["method"]) for line in lines[2:]] == [
        (stage, "none") for stage in ("round", "round", "profile", "rejected")
    ]
    assert measured.plain_ms == {1: 8.0}
