import errno
import json
import subprocess
import sys

import numpy as np
import pytest
import report_fakes as fakes

from adaspec.errors import EvaluationError
from adaspec.evaluate.render import page
from adaspec.evaluate.report_folder import EvaluationReport, check_destination
from adaspec.evaluate.written_report import read_report


def test_a_folder_holds_the_data_and_the_page(tmp_path):
    folder = tmp_path / "new" / "report"
    report = EvaluationReport(fakes.report())
    report.write(folder)
    assert {each.name for each in folder.iterdir()} == {"report.json", "report.html"}
    assert read_report(folder).document == report.document
    assert read_report(folder).page() == (folder / "report.html").read_text()
    assert [each.name for each in folder.parent.iterdir()] == ["report"]
    written = {each.name: each.read_bytes() for each in folder.iterdir()}
    with pytest.raises(EvaluationError, match="--force"):
        check_destination(folder, force=False)
    report.write(folder, force=True)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == written
    (folder / "chapter1.tex").write_text("years of work")
    with pytest.raises(EvaluationError, match="no part of a report"):
        check_destination(folder, force=True)


def test_a_page_that_cannot_be_made_leaves_the_old_report(tmp_path, monkeypatch):
    report = EvaluationReport(fakes.report((), workloads=("gsm8k",), concurrencies=(8,)))
    report.write(tmp_path / "old")
    before = (tmp_path / "old" / "report.json").read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, "no")

    monkeypatch.setattr(page, "page", fail)  # the last thing written
    for folder, force in ((tmp_path / "new", False), (tmp_path / "old", True)):
        with pytest.raises(EvaluationError):
            report.write(folder, force)
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old" / "report.json").read_bytes() == before


def test_json_is_strict_and_numpy_numbers_are_plain():
    document = {"a": float("nan"), "b": np.float64("inf"), "c": np.arange(2), "d": (1,)}
    text = EvaluationReport(document).to_json()
    assert json.loads(text) == {"a": None, "b": None, "c": [0, 1], "d": [1]}


def test_tables_need_neither_plotly_nor_jinja2():
    script = (
        "import sys, adaspec.evaluate.render.terminal, adaspec.evaluate.report_folder\n"
        "assert not {'plotly', 'jinja2', 'pyarrow'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_odd_report_is_written_without_failing(tmp_path):
    strange = ("一二三", "a$b$", "_x", "\udc80bad")
    reports = {
        "protocol": fakes.protocol_report(),
        "nothing": fakes.report(()),
        "strange": fakes.report(strange, ("gsm8k",), (1,)),
        "empty": {"schema": 1, "rows": [], "headline": []},
    }
    for name, report in reports.items():
        EvaluationReport(report).write(tmp_path / name)
        json.loads((tmp_path / name / "report.json").read_text())
    assert "nothing was evaluated" in (tmp_path / "empty" / "report.html").read_text()
