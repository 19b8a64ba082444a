"""What `eval/figures.py` derives from two reports."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "eval" / "figures.py"


@pytest.mark.skipif(
    not SCRIPT.exists(), reason="needs eval/, which a source distribution leaves out"
)
def test_the_interval_of_a_lead_between_reports_is_that_of_independent_figures():
    ours = {"tokens_per_s": 240.0, "speedup": 2.4, "ci95": [2.4 * 0.97, 2.4 * 1.03]}
    theirs = {"tokens_per_s": 200.0, "speedup": 2.0, "ci95": [2.0 * 0.96, 2.0 * 1.04]}
    found = runpy.run_path(str(SCRIPT))["lead_between"]("lead", ours, theirs)
    assert found["lead"] == pytest.approx(0.2)
    assert found["lead_ci95"] == pytest.approx([0.2 - 1.2 * 0.05, 0.2 + 1.2 * 0.05])
