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
