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


@pytest.fixture
def small():
    return EvaluationReport(fakes.report((), workloads=("gsm8k",), concurrencies=(8,)))


def refused(folder, force=False):
    with pytest.raises(EvaluationError) as caught:
        check_destination(folder, force)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_a_folder_holds_the_data_and_the_page(tmp_path):
    folder = tmp_path / "new" / "report"
    report = EvaluationReport(fakes.report())
    report.write(folder)
    assert {each.name for each in folder.iterdir()} == {"report.json", "report.html"}
    assert read_report(folder).document == report.document
    assert read_report(folder).page() == (folder / "report.html").read_text()
    assert [each.name for each in folder.parent.iterdir()] == ["report"]


def test_the_same_report_gives_the_same_bytes(tmp_path, small):
    for name in ("a", "b"):
        small.write(tmp_path / name)
    for each in (tmp_path / "a").rglob("*.*"):
        assert each.read_bytes() == (tmp_path / "b" / each.relative_to(tmp_path / "a")).read_bytes()


def test_json_is_strict_and_numpy_numbers_are_plain():
    document = {"a": float("nan"), "b": np.float64("inf"), "c": np.arange(2), "d": (1,)}
    text = EvaluationReport(document).to_json()
    assert json.loads(text) == {"a": None, "b": None, "c": [0, 1], "d": [1]}


def test_an_existing_folder_is_refused_unless_forced(tmp_path, small):
    small.write(tmp_path / "r")
    (tmp_path / "r" / "report.html").write_text("old")
    assert "--force" in refused(tmp_path / "r")
    small.write(tmp_path / "r", force=True)
    assert (tmp_path / "r" / "report.html").read_text() != "old"
    assert [each.name for each in tmp_path.iterdir()] == ["r"]


def test_force_never_replaces_a_folder_that_is_no_report(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    assert "no report.json" in refused(tmp_path / "thesis", force=True)
    assert (tmp_path / "thesis" / "chapter1.tex").exists()


@pytest.mark.parametrize("mine", ["notes.md", "plots/notes.txt"])
def test_force_never_deletes_files_that_a_report_does_not_write(tmp_path, small, mine):
    small.write(tmp_path / "r")
    path = tmp_path / "r" / mine
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    assert mine.partition("/")[0] in refused(tmp_path / "r", force=True)
    with pytest.raises(EvaluationError):
        small.write(tmp_path / "r", force=True)
    assert path.read_text() == "mine"


def test_a_file_in_the_way_is_refused_with_or_without_force(tmp_path):
    (tmp_path / "f").write_text("")
    assert "not a folder" in refused(tmp_path / "f")
    assert "not a folder" in refused(tmp_path / "f", force=True)
    assert "Not a directory" in refused(tmp_path / "f" / "below")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, small, monkeypatch, number):
    small.write(tmp_path / "old")
    before = (tmp_path / "old" / "report.json").read_bytes()

    def fail(*_):
        raise OSError(number, "no")

    monkeypatch.setattr(page, "page", fail)  # the last thing written
    for folder, force in ((tmp_path / "new", False), (tmp_path / "old", True)):
        with pytest.raises(EvaluationError) as caught:
            small.write(folder, force)
        assert "\n" not in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old" / "report.json").read_bytes() == before


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
        "lockstep": fakes.report(strange, ("gsm8k",), (1,), "lockstep"),
        "empty": {"schema": 1, "rows": [], "headline": []},
    }
    for name, report in reports.items():
        EvaluationReport(report).write(tmp_path / name)
        json.loads((tmp_path / name / "report.json").read_text())
    assert "nothing was evaluated" in (tmp_path / "empty" / "report.html").read_text()
