import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import write_synthetic

from adaspec.cli.main import run
from adaspec.evaluate import evaluation

QUICK = ["--concurrency", "2", "--orders", "1", "--resamples", "2", "--workload", "talk"]

OWN = """
import numpy as np
from adaspec.policy.protocol import Proposal

class Plain:
    def decide(self, batch):
        return Proposal(*np.zeros((2, len(batch)), int))

class Wants(Plain):
    def __init__(self, knob): pass

class Old(Plain):
    def forwards(self, batch): return 1
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace"
    write_synthetic(path, requests_per_workload=5)
    return path


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_policies.py").write_text(OWN)
    (tmp_path / "broken_policies.py").write_text("raise RuntimeError('no such table')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("own_policies", None)


def test_json_stands_alone_and_is_what_a_folder_holds_by_two_processes_too(
    trace, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("adaspec.cli.output.LINE_PERIOD_S", float("inf"))  # however slow it is
    evaluation = ["eval", str(trace), "--policy", "hybrid", "--json", *QUICK[:-2]]
    assert run([*evaluation, "--jobs", "1"]) == 0
    alone, err = capsys.readouterr()
    assert err == ""
    (folder := tmp_path / "report").mkdir()
    (folder / "report.json").write_text("{}")
    assert run([*evaluation, "--jobs", "2", "-o", str(folder), "--force"]) == 0
    printed, err = capsys.readouterr()
    assert err.splitlines() == [f"report written to {folder}"]
    assert json.loads(printed) == json.loads((folder / "report.json").read_text())
    assert (folder / "report.html").is_file()
    first, second = json.loads(alone), json.loads(printed)
    assert {**first, "command": ""} == {**second, "command": ""}


MISTAKES = {
    "/nowhere": "/nowhere: there is no such folder",
    "TRACE TRACE": "request '0-0' of workload 'edits' is already in",
    "TRACE --workload tlk": "workload is 'tlk'; did you mean 'talk'? (known: edits, talk)",
    "TRACE --exclude-request talk/0-99": "'talk/0-99' to exclude; did you mean 'talk/0-",
    "TRACE --policy python:json": "write python:MODULE:NAME",
    "TRACE --policy python:no_such:X": "ModuleNotFoundError: No module named 'no_such'",
    "TRACE --policy python:broken_policies:X": "RuntimeError: no such table",
    "TRACE --policy python:own_policies:Plian": "did you mean 'Plain'?",
    "TRACE --policy python:own_policies:Wants": "takes no arguments",
    "TRACE --policy python:own_policies:Old": "'forwards(batch)': it went in 0.2; write a class",
    "TRACE --policy python:json:JSONDecoder": "is no policy: it has no method 'decide'",
    "TRACE --policy python:own_policies:Plain": "replay it with --engine sync",
    "TRACE --concurrency 1,,8": "--concurrency",
    "TRACE --seed -1": "--seed",
    "TRACE --orders 0": "orders is 0",
    "TRACE --arrivals poisson:0": "write poisson:RATE, each above 0",
    "TRACE --arrivals bursts:1:2": "write bursts:LOW:HIGH:SECONDS",
    "TRACE --arrivals poison:3": "did you mean 'poisson'",
    "TRACE --slo-tpot-ms -3": "slo_tpot_ms is -3",
    "TRACE --max-step-ms 1": "a step of one request without drafts takes",
    "TRACE -o own_policies.py/report": "(Not a directory)",
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_said_in_one_line_before_anything_is_replayed(
    mistake, trace, own, monkeypatch, words, said
):
    monkeypatch.setattr(evaluation, "evaluate_loop", lambda *_: pytest.fail("it went on"))
    assert said in mistake("eval", *(trace if word == "TRACE" else word for word in words.split()))


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_evaluation_leaves_nothing_and_says_so(trace, tmp_path, ending):
    code = "from adaspec.cli import main, output; output.LINE_PERIOD_S = 0; main.main()"
    words = ["eval", str(trace), "-o", str(tmp_path / "r"), "--orders", "60", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        # Whoever runs the tests in the background may ignore interrupts, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while "hindsight" not in (line := process.stderr.readline()):
        assert line, "it ended before it was at work"
    process.send_signal(ending)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err.endswith("adaspec: error: interrupted\n")
    assert list(tmp_path.iterdir()) == []
