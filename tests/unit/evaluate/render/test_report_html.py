"""The page of a report: what stands in it, and that nothing foreign can act in it."""

from __future__ import annotations

import json
import logging
import sys
from html.parser import HTMLParser

import pytest
import report_fakes as fakes
from page_fakes import PLANTED, page_parts

from adaspec.evaluate.observation import MAX_STEPS
from adaspec.evaluate.render.html import page_data, report_html, script_json, text_html
from adaspec.evaluate.render.table import code, foreign
from adaspec.evaluate.report import Report
from adaspec.evaluate.report_folder import EvaluationReport


class Page(HTMLParser):
    """The tags of a page with their attributes, and its scripts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script" and not self.scripts[-1]:
            self.scripts[-1] = data
        else:
            self.text.append(data)


@pytest.fixture(scope="module")
def parts():
    return page_parts()


@pytest.fixture(scope="module")
def page(parts):
    document, seen = parts
    return Page(report_html(Report(document), seen, "/* plotly */"))


def test_planted_markup_is_text_and_no_tag(page):
    assert [tag for tag, _ in page.tags].count("script") == 3  # data, plotly, controls
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert any(PLANTED in text for text in page.text)


def test_nothing_is_fetched_from_elsewhere(page):
    for tag, attributes in page.tags:
        assert not {"src", "href", "srcset", "action"} & attributes.keys(), tag
    policy = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert policy.startswith("default-src 'none';")


def test_the_data_comes_through_unchanged_and_cannot_end_its_script(parts, page):
    document, seen = parts
    data = json.loads(page.scripts[0])
    assert data == json.loads(json.dumps(page_data(Report(document), seen), default=list))
    text = script_json({"</script>": "<!-- & \u2028", "nan": float("nan")})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script>": "<!-- & \u2028", "nan": None}


def test_the_losses_of_the_page_add_up(page):
    losses = json.loads(page.scripts[0])["losses"]
    assert {loss["policy"] for loss in losses} == {
        f"mine{PLANTED}",
        "hybrid-splice:2:8:2:1:4",
        "static:best",
    }
    for loss in losses:
        parts = loss["least_s"] + sum(loss["parts"].values()) + loss["rest_s"]
        assert parts == pytest.approx(loss["token_s"])


def test_a_learned_policys_steps_tell_why(page):
    data = json.loads(page.scripts[0])
    for passage in data["passages"]:
        for step in passage["steps"]:
            assert ("reasons" in step) == passage["policy"].startswith("mine")
            if "reasons" in step and step["ngram_len"] and not step["neural_len"]:
                why = step["reasons"]
                assert step["ngram_len"] == why["ngram_len"]
                assert why["ngram_value"] >= why["neural_value"]
    assert 0 < sum(len(each["steps"]) for each in data["passages"]) <= MAX_STEPS


def test_tokens_are_text_where_that_is_known(parts):
    document, seen = parts
    known = Page(report_html(Report(document), seen, "", lambda token: f"<{token}>"))
    data = json.loads(known.scripts[0])
    used = {str(t) for request in data["requests"].values() for t in request["output"]}
    assert used <= data["vocabulary"].keys()
    assert all(text == f"<{token}>" for token, text in data["vocabulary"].items())
    assert "Tokens are shown as text" in " ".join(known.text)


def test_every_odd_report_makes_a_page():
    for report in (
        fakes.report(("一", "a$b$", "_x", "\udc80bad"), ("$plotly",), (1,), "lockstep"),
        fakes.protocol_report(),
        fakes.report(()),
        {"schema": 1, "rows": [], "headline": []},
    ):
        text = report_html(Report(report), None, "")
        text.encode()
        assert json.loads(Page(text).scripts[0])["passages"] == []


def test_own_words_have_marks_and_foreign_ones_none():
    assert text_html("`a<b` and **so** *on*") == (
        "<code>a&lt;b</code> and <strong>so</strong> <em>on</em>"
    )
    assert text_html([foreign("`a` **b**"), code("*c*<")]) == "`a` **b**<code>*c*&lt;</code>"


def test_without_plotly_one_line_says_what_is_left_out(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with caplog.at_level(logging.WARNING, "adaspec"):
        EvaluationReport(fakes.report(()), []).write(tmp_path / "r")
    (line,) = caplog.messages
    assert "\n" not in line and "report.html" in line and "pip install plotly" in line
    assert not (tmp_path / "r" / "report.html").exists()
    assert (tmp_path / "r" / "report.md").exists()


def test_the_page_is_for_its_owner_alone_as_traces_are(tmp_path):
    pytest.importorskip("plotly")
    EvaluationReport(fakes.report(()), []).write(tmp_path / "r")
    written = tmp_path / "r" / "report.html"
    assert written.stat().st_mode & 0o777 == 0o600
    assert written.stat().st_size < 10e6
