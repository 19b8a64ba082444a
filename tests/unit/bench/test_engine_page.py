"""The page and the picture of a benchmark's report."""

import json
from pathlib import Path

import pytest

from adaspec.bench.engine.page import page, save_plot

REPORTS = Path(__file__).resolve().parents[3] / "eval" / "reports" / "reference-pair-engine"


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_a_report_of_an_early_version_is_shown_without_what_it_lacks(concurrency, tmp_path):
    path = REPORTS / f"all-methods-{concurrency}" / "report.json"
    if not path.exists():
        pytest.skip("eval/ is not here: a source distribution leaves it out")
    report = json.loads(path.read_text(encoding="utf-8"))
    text = page(report, "speedup.png")
    lead = report["headline"][0]["adaspec_over_best_static"]
    assert f"adaspec is {lead:.3f}x {report['headline'][0]['best_static']}, the best" in text
    assert save_plot(report, tmp_path / "speedup.png").read_bytes()[1:4] == b"PNG"
