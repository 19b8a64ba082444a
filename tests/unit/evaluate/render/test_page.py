"""A report's page: what stands in it, and what of it comes from outside."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from importlib import resources

import pytest
import report_fakes as fakes

from adaspec.evaluate.render.contents import contents_of
from adaspec.evaluate.render.figures import figures_of
from adaspec.evaluate.render.page import page, text_html
from adaspec.evaluate.render.table import code, foreign
from adaspec.evaluate.report import Report


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


def parsed(document):
    report = Report(document)
    return Parsed(page(contents_of(report), figures_of(report)))


def test_markup_planted_in_every_name_is_text():
    shown = parsed(fakes.planted_report())
    assert [tag for tag, _ in shown.tags if tag in ("script", "img")] == ["script"] * 3
    assert fakes.PLANTED in "".join(shown.texts)
    assert "</script" not in shown.scripts[0].lower()
    assert shown.scripts[0].isascii()
    for figure in json.loads(shown.scripts[0])["at-load"]["drawn"].values():
        assert all("<img" not in note["text"] for note in figure["layout"]["annotations"])


def test_nothing_is_fetched_from_elsewhere():
    for _, attrs in parsed(fakes.report()).tags:
        assert not {"src", "href", "srcset"} & attrs.keys()


def test_every_workload_and_load_has_its_figures_and_every_workload_its_tables():
    report = fakes.report()
    shown = parsed(report)
    figures = json.loads(shown.scripts[0])
    workloads, loads = len(fakes.WORKLOADS) + 1, len(fakes.CONCURRENCIES)
    assert {name: len(each["drawn"]) for name, each in figures.items()} == {
        "by-load": workloads,
        "at-load": workloads * loads,
        "lifts": loads,
    }
    sections = [attrs["data-workload"] for _, attrs in shown.tags if "data-workload" in attrs]
    assert {sections.count(str(at)) for at in range(workloads)} == {len(sections) // workloads}
    lift = next(e for e in report["headline"] if e["workload"] == "all" and e["concurrency"] == 8)
    (row,) = (row for row in figures["lifts"]["drawn"]["1"]["data"][-1:])
    assert row["x"] == [pytest.approx(100 * lift["lift_over_static_best"])]


def test_words_of_ours_have_code_and_stress_and_names_from_outside_have_not():
    assert text_html("**So** `a*b*c` *it* is <") == (
        "<strong>So</strong> <code>a*b*c</code> <em>it</em> is &lt;"
    )
    assert text_html([foreign("*a* `b` <i>"), code("<`x`>")]) == (
        "*a* `b` &lt;i&gt;<code>&lt;`x`&gt;</code>"
    )


def test_our_own_script_is_short():
    text = (resources.files("adaspec.evaluate.render") / "page.html").read_text(encoding="utf-8")
    assert len(text.rpartition("<script>")[2].partition("</script>")[0].splitlines()) <= 60
