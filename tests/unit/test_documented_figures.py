"""Every measured number in README and docs is one of a committed report.

Tables between `<!-- table NAME -->` and `<!-- end -->` are written by eval/summary.py. Any other
number with a unit has to be listed in a comment on its page, with where it stands:

    <!-- figures
    0.76: eval/reports/NAME/report.json calibration 0 auc
    10 GiB: adaspec/vllm/options.py "10 * 2**30"
    -->

Of a JSON file, words lead to the number: a key, a place in a list, or what one of a list's entries
has among its values. Of any other file, what is quoted has to stand in it.
"""

import json
import re

import numpy as np
import pytest
from checkout import CHECKOUT, need, run_python

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.cost.model import target_s
from adaspec.policy.budget import best_budget, keep_likeliest, ranked

need("eval")
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
COMPUTED = {"how-it-decides.md": "## A worked example"}
"""From this heading on, every number of a page is computed by a test."""
UNIT = r"(?:%|x\b|ms\b|us\b|µs|s\b|seconds?\b|minutes?\b|hours?\b|[KMG]i?B\b|points?\b)"
NUMBER = re.compile(
    rf"(?<![\w.:`/-])([+-]?\d[\d,]*(?:\.\d+)?(?: to \d+)?) ?({UNIT})"
    r"|(?<![\w.:/-])(\d+\.\d+)(?![\w.])"
)


def prose(page):
    """A page without code, formulas, links' targets, comments and generated tables."""
    text = page.read_text(encoding="utf-8").partition(COMPUTED.get(page.name, "\0"))[0]
    for taken in (
        r"<!-- table .*?<!-- end -->",
        r"<!--.*?-->",
        r"^```.*?^```",
        r"^    .*?$",
        r"\$\$.*?\$\$",
        r"`[^`\n]*`",
        r"\$[^$\n]*\$",
        r"\]\([^)]*\)",
        r"arXiv \d+\.\d+",
        r"(?:vLLM|Python|V)(?: for CPU)? ?\d+\.\d+(?: to \d+\.\d+)?",
    ):
        text = re.sub(taken, " ", text, flags=re.MULTILINE | re.DOTALL)
    return text


def numbers(text):
    for found in NUMBER.finditer(text):
        yield " ".join(found[0].split())


def listed(page):
    """What a page's comments say of its numbers: the number, and where it stands."""
    for block in re.findall(r"<!-- figures\n(.*?)-->", page.read_text("utf-8"), re.DOTALL):
        for line in block.strip().splitlines():
            number, _, source = line.partition(": ")
            yield number, source


def follow(document, words):
    for word in words:
        if isinstance(document, list) and not word.isdigit():
            (document,) = (entry for entry in document if word in map(str, list(entry.values())))
        elif isinstance(document, list):
            held = [e for e in document if isinstance(e, dict) and int(word) in e.values()]
            document = held[0] if len(held) == 1 else document[int(word)]
        else:
            document = document[word]
    return document


def as_written(value, number):
    """A value in the form of a number on a page."""
    digits = re.match(r"[+-]?([\d,]*)(?:\.(\d+))?", number)
    places = len(digits[2] or "")
    if number.endswith("%"):
        return f"{100 * value:{'+' if number[0] in '+-' else ''}.{places}f}%"
    return re.sub(r"^[+-]?[\d,]*(?:\.\d+)?", f"{value:.{places}f}", number)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_measured_number_of_a_page_says_where_it_comes_from(page):
    known = {number for number, _ in listed(page)}
    assert [found for found in numbers(prose(page)) if found not in known] == []


@pytest.mark.parametrize(
    ("page", "number", "source"),
    [(page, *each) for page in PAGES for each in listed(page)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_number_is_the_one_of_its_source(page, number, source):
    assert number in prose(page), "listed and not on the page"
    path, _, where = source.partition(" ")
    text = (CHECKOUT / path).read_text(encoding="utf-8")
    if path.endswith(".json"):
        assert as_written(follow(json.loads(text), where.split()), number) == number
    else:
        quoted = re.findall(r'"([^"]+)"', where)
        assert quoted
        assert all(each in text for each in quoted)


def test_tables_and_summary_are_those_of_the_committed_reports():
    run_python(CHECKOUT / "eval" / "summary.py", "--check")


def test_a_measured_number_is_seen_and_a_count_is_none():
    for text in ("2.37x", "+7.6%", "1.2 ms", "0.86", "3 to 4 minutes"):
        assert list(numbers(f"It is {text} here.")) == [text]
    for text in ("24 tokens", "section 1.", "1 to 32 tokens", "8 such steps"):
        assert list(numbers(f"It is {text} here.")) == []


OFFERED = {
    "A": [0.90, 0.86, 0.82, 0.79, 0.76, 0.73, 0.70, 0.68],
    "B": [0.93, 0.74, 0.56, 0.42],
    "C": [0.20],
}
CASES = ((0, 860), (490, 860), (502, 860), (502, 300))
"""Prompt tokens beside, and the rate."""
COSTS = H100_LLAMA_3_1_8B.constants()
ROWS = len(OFFERED)


def test_every_number_of_the_page_is_computed():
    need("docs")
    page = (CHECKOUT / "docs" / "how-it-decides.md").read_text(encoding="utf-8")
    section = page.partition("## A worked example")[2]
    rows = [[name, ", ".join(f"{s:.2f}" for s in offered)] for name, offered in OFFERED.items()]
    lengths = np.array([len(offered) for offered in OFFERED.values()])
    survival = np.zeros((ROWS, lengths.max()))
    for row, each in enumerate(OFFERED.values()):
        survival[row, : len(each)] = each
    offered = ranked(survival, lengths)
    for budget in (0, 5, 7, 12, 13):
        accepted = offered[:budget].sum()
        worth = [
            ROWS + accepted - rate * target_s(COSTS, ROWS + prompt + budget)
            for prompt, rate in CASES
        ]
        rows.append([str(budget), f"{accepted:.2f}", *(f"{value:.2f}" for value in worth)])
    lines = [line for line in section.splitlines() if re.match(r"\| (\d+|[ABC]) \|", line)]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines] == rows
    found = [best_budget(COSTS, rate, ROWS + prompt, offered, 1.0) for prompt, rate in CASES[:3]]
    assert found == [13, 13, 7]
    price = keep_likeliest(offered, survival, lengths, 7)
    assert f"the last of them, {price:.2f}." in " ".join(section.split())
