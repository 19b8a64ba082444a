"""Calibration in a report: its tables."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.evaluate.calibration import BINS, judge
from adaspec.evaluate.render.tables import calibration


@pytest.fixture
def judged():
    rng = np.random.default_rng(2)
    predicted = rng.random(900)
    right = (rng.random(900) < predicted).astype(float)
    one = {"survival": 1, **judge(right, predicted), "auc": None}
    sources = {"ngram": [one, {**one, "survival": 2}], "neural": [one]}
    return {"bins": BINS, "sources": sources}


def test_a_line_per_source_and_depth_and_per_drafted_token(
    judged,
):
    before = {"auc": 0.5, "log_loss": 0.69}
    token = {"token": 1, **judged["sources"]["neural"][0], "before": before}
    sources, table = calibration({**judged, "drafted": [token]})
    for each in (sources, table):
        assert {len(row.cells) for row in each.rows} == {len(each.columns)}
    assert [row.cells[:3] for row in sources.rows] == [
        ["n-gram", "S(1)", "900"],
        ["n-gram", "S(2)", "900"],
        ["neural", "S(1)", "900"],
    ]
    assert sources.rows[0].cells[5] == "–"
    (cells,) = (row.cells for row in table.rows)
    assert (cells[0], cells[1], cells[6]) == ("1", "900", "0.500")
