"""`adaspec train` from the outside."""

import json
import sys

import pytest
from synthetic import TINY, synthesize, without_drafts

from adaspec.cli.main import run
from adaspec.trace.writer import write_trace
from adaspec.train.metrics import metrics_of

QUICK = ["--concurrency", "2", "--orders", "1", "--resamples", "2", "--jobs", "1"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Without neural drafts: that trains fastest."""
    path = tmp_path_factory.mktemp("traces") / "trace"
    requests = synthesize(0, TINY[:1], requests_per_workload=24)
    write_trace(path, map(without_drafts, requests), target="a/target")
    return path


@pytest.fixture(scope="module")
def crossed(trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports") / "crossfit"
    assert run(["train", str(trace), "--crossfit", "2", "-o", str(folder), *QUICK]) == 0
    return folder


@pytest.fixture(scope="module")
def policy(trace, crossed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies") / "mine"
    report = ["--crossfit-report", str(crossed)]
    assert run(["train", str(trace), "-o", str(folder), *QUICK, *report]) == 0
    return folder


def test_dask_that_is_not_installed_is_asked_for(trace, mistake, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    said = mistake("train", trace, "-o", tmp_path / "policy", "--dask", "tcp://127.0.0.1:9")
    assert "pip install 'adaspec[dask]'" in said


def test_a_card_gives_the_cross_fitted_figure_first(policy, crossed):
    card = (policy / "CARD.md").read_text()
    assert card.index("### Cross-fitted, all 24 requests") < card.index("### This very model")
    assert "No cross-fitted figure" not in card
    metrics = json.loads((policy / "manifest.json").read_text())["metrics"]
    report = json.loads((crossed / "report.json").read_text())
    assert metrics["cross_fitted"] == metrics_of(report)


FIT = "train TRACE --crossfit"
MISTAKES = {
    "train nowhere -o out": "there is no such folder",
    "train TRACE": "Missing option '-o'",
    "train TRACE -o out --exclude-workload edit": "did you mean 'edits'?",
    "train TRACE -o out --exclude-request edits/none": "no request 'edits/none' to exclude",
    "train TRACE -o out --cost h200": "no cost model 'h200'",
    "train nowhere -o CROSSED": "add --force",
    "train nowhere -o CROSSED --force": "holds no SHA256SUMS",
    "train TRACE -o out --crossfit-report TRACE": "report.json",
    f"{FIT} 1": "1 is not in the range x>=2",
    f"{FIT} 25": "has 24 different requests (turns of a dialogue count as one), fewer than folds",
    f"{FIT} 2 --exclude-request edits/none": "no request 'edits/none' to exclude",
    f"{FIT} 2 -o POLICY --force": "so --force will not replace it",
    f"{FIT} 2 -o CROSSED": "exists: choose another folder",
    f"{FIT} 2 --crossfit-report CROSSED": "leave --crossfit-report and --dask out",
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_said_in_one_line(
    policy, crossed, trace, tmp_path, monkeypatch, mistake, words, said
):
    monkeypatch.chdir(tmp_path)
    places = {"TRACE": trace, "CROSSED": crossed, "POLICY": policy}
    assert said in mistake(*(places.get(word, word) for word in words.split()))
