"""A report as people see it: its tables, its page and its folder."""

import io
import json
from html.parser import HTMLParser

import numpy as np
import pytest
import report_fakes as fakes
from rich.console import Console

from adaspec.errors import EvaluationError
from adaspec.evaluate.report import EvaluationReport, check_destination, read_report
from adaspec.evaluate.table import Table

SIX = (
    "mine",
    "hybrid-splice:14:48:4:10:15",
    "budget:3",
    "a|b_c[red]\x1b[31mb",
    "ema:0.3:1-8=5|3|1",
    "very_long_policy_folder_name_of_somebody_2026",
)


class Parsed(HTMLParser):
    """The tags, the text and the scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)


def printed(report, width=100):
    console = Console(file=io.StringIO(), width=width)
    EvaluationReport(report).print(console)
    return console.file.getvalue()


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_the_terminal_says_what_was_evaluated_and_what_it_came_to():
    report = fakes.report() | {"engine": "async"}
    entry = next(e for e in report["headline"] if e["workload"] == "all" and e["concurrency"] == 8)
    text = printed(report, 300)
    for said in (
        "cnn 67, gsm8k 118, instructcoder 282, sharegpt 47",
        "unpaired 90, of 2,048 output tokens or more 0",
        "h100-llama-3.1-8b",
        "orders 3, resamples 40, seed 0",
        "async engine",
    ):
        assert said in text, said
    low, high = entry["lift_ci95"]
    over = line_of(text, "over static:best").split()
    said = f"{100 * entry['lift_over_static_best']:+.1f}%"
    assert over[4:6] == [said, f"±{50 * (high - low):.1f}"]
    assert f"{100 * entry['gap_closed']:.0f}%" in line_of(text, "gap closed ").split()
    assert line_of(text, "worst workload").split()[-4:] == ["+1.3%"] * 4
    assert all(line_of(text, name) for name in fakes.WORKLOADS)
    assert "over static:tuned" not in text
    won = text.split("The winning settings on all workloads, mixed")[1]
    assert line_of(won, "static:best").split()[:3] == ["static:best", "1", fakes.WON]
    assert "(at the edge of what was tried: KN)" in won
    assert line_of(won, "fixed:best").split()[1:4] == ["1,", "8,", "32"]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_name_and_no_figure_is_cut_at_any_usual_width(width):
    report = fakes.report(SIX)
    text = printed(report, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text and "\x1b" not in text
    for name in (*SIX, "instructcoder"):
        assert name.partition("\x1b")[0] in text
    for entry in report["headline"]:
        if entry["workload"] == "all":
            assert f"{100 * entry['lift_over_static_best']:+.1f}%" in text


def test_what_was_not_computed_is_a_dash_and_what_was_seen_in_training_is_marked():
    report = fakes.report()
    for entry in report["headline"]:
        if entry["concurrency"] == 8:
            entry["gap_closed"] = None
    for row in report["rows"]:
        if row["policy"] == "mine":
            row["detail"]["seen_in_training"] = True
            if row["concurrency"] == 1:
                row["speedup"] = float("nan")
    text = printed(report)
    assert line_of(text, "gap closed ").split()[3] == "–"
    speeds = text.split("Speedup over none on")[1]
    assert line_of(speeds, "mine †").count("–") == 1
    assert "not held out" in text


def test_odd_reports_without_headline_policies_or_rows_are_printed_and_written(
    tmp_path,
):
    strange = ("一二三", "a$b$", "_x", "\udc80bad")
    reports = {
        "nothing": (fakes.report(()), ("static:best",)),
        "one": (fakes.report(workloads=("gsm8k",), concurrencies=(8,)), ("mine on gsm8k",)),
        "strange": (fakes.report(strange, ("gsm8k",), (1,)), ("a$b$",)),
        "empty": ({"schema": 1, "rows": [], "headline": []}, ("nothing was evaluated",)),
    }
    for name, (report, said) in reports.items():
        text = printed(report)
        assert all(each in text for each in said), name
        assert ("over static:best" in text) == (name in ("one", "strange"))
        EvaluationReport(report).write(tmp_path / name)
        json.loads((tmp_path / name / "report.json").read_text())
    assert "nothing was evaluated" in (tmp_path / "empty" / "report.html").read_text()


def test_markup_planted_in_every_name_is_text_and_nothing_is_fetched():
    shown = Parsed(EvaluationReport(fakes.planted_report()).page())
    assert "img" not in [tag for tag, _ in shown.tags]
    assert fakes.PLANTED in "".join(shown.texts)
    assert all(fakes.PLANTED not in script for script in shown.scripts[1:])
    for _, attrs in shown.tags:
        assert not {"src", "srcset"} & attrs.keys()
        assert attrs.get("href", "#").startswith("#")


def test_every_workload_has_a_figure_and_its_tables_on_the_page():
    shown = Parsed(EvaluationReport(fakes.report()).page())
    figures = [attrs for _, attrs in shown.tags if attrs.get("id", "").startswith("figure-")]
    assert len(figures) == len(fakes.WORKLOADS) + 1
    labels = [attrs.get("aria-label", "") for _, attrs in shown.tags]
    for place in ("all workloads, mixed", *fakes.WORKLOADS):
        assert sum(f" on {place}" in label for label in labels) == 3


def test_a_table_in_markdown_has_its_title_its_sentence_and_names_escaped():
    table = Table("Speedups", ["policy", "at 1"], [["my_work|load <b>", "1.2x"]], sentence="So.")
    assert table.markdown(3).splitlines() == [
        "### Speedups",
        "",
        "So.",
        "",
        "| policy | at 1 |",
        "| :-- | --: |",
        "| my\\_work\\|load \\<b\\> | 1.2x |",
    ]


def test_a_folder_holds_the_data_and_the_page(tmp_path):
    folder = tmp_path / "new" / "report"
    report = EvaluationReport(fakes.report())
    report.write(folder)
    assert {each.name for each in folder.iterdir()} == {"report.json", "report.html"}
    assert read_report(folder).document == report.document
    assert [each.name for each in folder.parent.iterdir()] == ["report"]
    written = {each.name: each.read_bytes() for each in folder.iterdir()}
    with pytest.raises(EvaluationError, match="--force"):
        check_destination(folder, force=False)
    report.write(folder, force=True)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == written
    (folder / "chapter1.tex").write_text("years of work")
    with pytest.raises(EvaluationError, match="no part of a report"):
        check_destination(folder, force=True)


def test_json_is_strict_and_numpy_numbers_are_plain():
    document = {"a": float("nan"), "b": np.float64("inf"), "c": np.arange(2), "d": (1,)}
    text = EvaluationReport(document).to_json()
    assert json.loads(text) == {"a": None, "b": None, "c": [0, 1], "d": [1]}
