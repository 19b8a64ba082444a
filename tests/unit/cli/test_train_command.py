"""`adaspec train` from the outside."""

import json
import sys

import pytest
from synthetic import TINY, synthesize, without_drafts

from adaspec.cli.main import run
from adaspec.trace.writer import write_trace

QUICK = ["--concurrency", "2", "--orders", "1", "--resamples", "2", "--jobs", "1"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Without neural drafts: that trains fastest."""
    path = tmp_path_factory.mktemp("traces") / "trace"
    requests = synthesize(0, TINY[:1], requests_per_workload=24)
    write_trace(path, map(without_drafts, requests), target="a/target")
    return path


@pytest.mark.slow
def test_a_policy_and_a_cross_fit_are_written_and_their_reports_printed(trace, tmp_path, capsys):
    assert run(["train", str(trace), "-o", f"{tmp_path}/mine", "--json", *QUICK]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["policies"] == ["mine"]
    assert "2 at once: " in said.err
    crossed = ["--crossfit", "2", "-o", f"{tmp_path}/crossed", "--json"]
    assert run(["train", str(trace), *crossed, *QUICK]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "crossed" / "report.json").read_text())
    assert report["policies"] == ["crossfit:2"]
    assert any("costs are those of" in note for note in report["notes"])


def test_dask_that_is_not_installed_is_asked_for(trace, mistake, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    said = mistake("train", trace, "-o", tmp_path / "policy", "--dask", "tcp://127.0.0.1:9")
    assert "pip install 'adaspec[dask]'" in said


FIT = "train TRACE --crossfit"
MISTAKES = {
    "train nowhere -o out": "there is no such folder",
    "train TRACE": "Missing option '-o'",
    "train TRACE -o out --exclude-workload edit": "did you mean 'edits'?",
    "train TRACE -o out --exclude-request edits/none": "no request 'edits/none' to exclude",
    "train TRACE -o out --cost h200": "a JSON file, is 'h200' (known: h100",
    "train nowhere -o TRACE": "add --force",
    "train nowhere -o TRACE --force": "so --force will not replace it",
    f"{FIT} 25": "has 24 different requests (turns of a dialogue count as one), which leaves",
    f"{FIT} 2 -o TRACE --force": "so --force will not replace it",
    f"{FIT} 2 -o TRACE": "exists: choose another folder",
    f"{FIT} 2 --dask tcp://127.0.0.1:9": "leave --dask out",
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_said_in_one_line(trace, tmp_path, monkeypatch, mistake, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in mistake(*(trace if word == "TRACE" else word for word in words.split()))
