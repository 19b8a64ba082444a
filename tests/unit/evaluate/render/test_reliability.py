"""Calibration in a report: its table, its picture, and nothing where nothing was judged."""

from __future__ import annotations

import io

import numpy as np
import pytest

from adaspec.evaluate.calibration import BINS, judge
from adaspec.evaluate.render.reliability import (
    HEAD,
    HEARD_HEAD,
    calibration_figure,
    calibration_rows,
    heard_rows,
)


@pytest.fixture
def report():
    rng = np.random.default_rng(2)
    said = rng.random(900)
    came = (rng.random(900) < said).astype(float)
    one = {"survival": 1, **judge(came, said), "without_tables": {"auc": None, "log_loss": 0.7}}
    sources = {"ngram": [one, {**one, "survival": 2}], "neural": [one]}
    return {"calibration": {"concurrency": [1, 8], "bins": BINS, "sources": sources}}


def test_a_line_per_source_and_depth(report):
    rows = calibration_rows(report["calibration"])
    assert [row[:3] for row in rows] == [
        ["n-gram", "S(1)", "900"],
        ["n-gram", "S(2)", "900"],
        ["neural", "S(1)", "900"],
    ]
    assert {len(row) for row in rows} == {len(HEAD)}
    assert rows[0][6] == "–"


def test_a_line_per_drafted_token_with_what_was_thought_before_it_was_seen(report):
    assert heard_rows(report["calibration"]) == []
    seen = report["calibration"]["sources"]["neural"][0]
    before = {"auc": 0.5, "log_loss": 0.69}
    rows = heard_rows({"drafted": [{"token": 1, **seen, "before": before}]})
    assert [len(row) for row in rows] == [len(HEARD_HEAD)]
    assert (rows[0][0], rows[0][1], rows[0][5]) == ("1", "900", "0.500")


def test_a_panel_per_source_with_a_curve_per_depth(report):
    figure = calibration_figure(report)
    assert [len(axes.lines) for axes in figure.axes] == [3, 2]
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[0].startswith("S(1)  ECE 0.0")


def test_the_same_report_gives_the_same_picture(report):
    def drawn():
        file = io.BytesIO()
        calibration_figure(report).savefig(file, format="png", metadata={"Software": None})
        return file.getvalue()

    assert drawn() == drawn()


def test_nothing_is_drawn_of_a_report_without(report):
    assert calibration_figure({}) is None
    assert calibration_figure({"calibration": {"sources": {}}}) is None
