"""`adaspec train` from the outside, and `adaspec eval` of what it wrote."""

import dataclasses
import json
import sys

import pytest
from synthetic import synthesize
from tiny_training import TINY

from adaspec.cli.main import run
from adaspec.trace.manifest import Manifest
from adaspec.trace.writer import TraceWriter
from adaspec.train.metrics import metrics_of

QUICK = ["--concurrency", "2", "--orders", "1", "--resamples", "2", "--jobs", "1"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Without neural drafts: that trains fastest."""
    path = tmp_path_factory.mktemp("traces") / "trace"
    with TraceWriter(path, Manifest(kind="dense", target="a/target", synthetic=True)) as writer:
        for request in synthesize(0, TINY[:1], requests_per_workload=24):
            bare = {"neural_accepted": None, "drafted_tokens": None, "confidences": None}
            writer.add(dataclasses.replace(request, **bare))
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


def test_what_train_writes_is_inspected_and_judged_on_unseen_requests(policy, trace, capsys):
    assert run(["inspect", str(policy), "--json"]) == 0
    trained_on = json.loads(capsys.readouterr().out)["manifest"]["training_requests"]
    assert run(["eval", str(trace), "--policy", str(policy), "--json", *QUICK]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["traces"]["left_out"] == {"edits": {"seen in training": len(trained_on)}}
    assert report["traces"]["requests"] == {"edits": 24 - len(trained_on)}
    assert "mine" in {row["policy"] for row in report["rows"]}
    for entry in report["headline"]:
        assert entry["policy"] == "mine"
        assert entry["lift_over_static_tuned"] is not None


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
    "train TRACE -o CROSSED --force": "holds no SHA256SUMS",
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
