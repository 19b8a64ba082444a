"""What `eval/figures.py` derives from two reports."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "eval" / "figures.py"


@pytest.fixture
def figures() -> ModuleType:
    if not SCRIPT.exists():
        pytest.skip("eval/ is not here: a source distribution leaves it out")
    spec = importlib.util.spec_from_file_location("figures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_interval_of_a_lead_between_reports_is_that_of_independent_figures(figures):
    ours = {"tokens_per_s": 240.0, "speedup": 2.4, "ci95": [2.4 * 0.97, 2.4 * 1.03]}
    theirs = {"tokens_per_s": 200.0, "speedup": 2.0, "ci95": [2.0 * 0.96, 2.0 * 1.04]}
    found = figures.lead_between("lead", ours, theirs)
    assert found["lead"] == pytest.approx(0.2)
    assert found["lead_ci95"] == pytest.approx([0.2 - 1.2 * 0.05, 0.2 + 1.2 * 0.05])


def test_suffix_decoding_is_shown_at_its_best_in_each_workload(figures, monkeypatch):
    speeds = {"suffix:1:0.1": {"all": 3.0, "code": 1.0}, "suffix:2:0.1": {"all": 2.0, "code": 4.0}}
    rows = [
        {"policy": policy, "workload": workload, "concurrency": load, "tokens_per_s": speed + load}
        for policy, each in {**speeds, "none": {"all": 9.0, "code": 9.0}}.items()
        for workload, speed in each.items()
        for load in (1, 8)
    ]
    monkeypatch.setattr(figures, "report", lambda name: {"rows": rows})
    found = figures.best_suffix_rows("any", 8)
    assert {workload: row["policy"] for workload, row in found.items()} == {
        "all": "suffix:1:0.1",
        "code": "suffix:2:0.1",
    }
    assert {row["concurrency"] for row in found.values()} == {8}
