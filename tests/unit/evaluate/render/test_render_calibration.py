"""Calibration in a report: its tables, its picture, and nothing where nothing was judged."""

from __future__ import annotations

import io

import numpy as np
import pytest
import report_fakes as fakes

from adaspec.evaluate.calibration import BINS, judge
from adaspec.evaluate.render.report_plots import calibration_figure
from adaspec.evaluate.render.tables import calibration
from adaspec.evaluate.report import Report


@pytest.fixture
def judged():
    rng = np.random.default_rng(2)
    predicted = rng.random(900)
    right = (rng.random(900) < predicted).astype(float)
    other = {"auc": None, "log_loss": 0.7}
    one = {"survival": 1, **judge(right, predicted), "without_tables": other}
    sources = {"ngram": [one, {**one, "survival": 2}], "neural": [one]}
    return {"concurrency": [1, 8], "bins": BINS, "sources": sources}


def drawn(judged):
    return calibration_figure(Report({**fakes.report(), "calibration": judged}))


def test_a_line_per_source_and_depth(judged):
    (table,) = calibration(judged)
    assert [row.cells[:3] for row in table.rows] == [
        ["n-gram", "S(1)", "900"],
        ["n-gram", "S(2)", "900"],
        ["neural", "S(1)", "900"],
    ]
    assert {len(row.cells) for row in table.rows} == {len(table.columns)}
    assert table.rows[0].cells[6] == "–"


def test_a_line_per_drafted_token_with_what_was_thought_before_it_was_seen(judged):
    before = {"auc": 0.5, "log_loss": 0.69}
    token = {"token": 1, **judged["sources"]["neural"][0], "before": before}
    _, table = calibration({**judged, "drafted": [token]})
    assert [len(row.cells) for row in table.rows] == [len(table.columns)]
    cells = table.rows[0].cells
    assert (cells[0], cells[1], cells[5]) == ("1", "900", "0.500")


def test_a_panel_per_source_with_a_curve_per_depth(judged):
    figure = drawn(judged)
    assert [len(axes.lines) for axes in figure.axes] == [3, 2]
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[0].startswith("S(1)  ECE 0.0")


def test_the_same_report_gives_the_same_picture(judged):
    def saved():
        file = io.BytesIO()
        drawn(judged).savefig(file, format="png", metadata={"Software": None})
        return file.getvalue()

    assert saved() == saved()


def test_nothing_is_drawn_of_a_report_without(judged):
    assert drawn(None) is None
    assert drawn({"sources": {}}) is None
