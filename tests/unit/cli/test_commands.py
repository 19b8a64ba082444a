"""The commands from the outside: what they print and refuse."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from synthetic import TINY, synthesize, without_drafts, write_synthetic

from adaspec.cli.import_command import command as import_command
from adaspec.cli.main import run
from adaspec.cost.load import H100_LLAMA_3_1_8B, FitQuality, load_cost
from adaspec.errors import GONE
from adaspec.evaluate import evaluation
from adaspec.trace.reader import TraceReader
from adaspec.trace.writer import write_trace
from adaspec.vllm import commands
from adaspec.vllm.commands import Profile
from adaspec.vllm.measuring import Measured

QUICK = ["--concurrency", "2", "--orders", "1", "--resamples", "2", "--jobs", "1"]


@pytest.fixture(scope="module")
def bare_trace(tmp_path_factory):
    """Without neural drafts: that trains fastest."""
    path = tmp_path_factory.mktemp("traces") / "trace"
    requests = synthesize(0, TINY[:1], requests_per_workload=24)
    write_trace(path, map(without_drafts, requests), target="a/target")
    return path


@pytest.mark.slow
def test_a_policy_and_a_cross_fit_are_written_and_their_reports_printed(
    bare_trace, tmp_path, capsys
):
    assert run(["train", str(bare_trace), "-o", f"{tmp_path}/mine", "--json", *QUICK]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["policies"] == ["mine"]
    assert "2 at once: " in said.err
    crossed = ["--crossfit", "2", "-o", f"{tmp_path}/crossed", "--json"]
    assert run(["train", str(bare_trace), *crossed, *QUICK]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "crossed" / "report.json").read_text())
    assert report["policies"] == ["crossfit:2"]
    assert any("costs are those of" in note for note in report["notes"])


def test_dask_that_is_not_installed_is_asked_for(trace, mistake, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    said = mistake("train", trace, "-o", tmp_path / "policy", "--dask", "tcp://127.0.0.1:9")
    assert "pip install 'adaspec[dask]'" in said


COST = H100_LLAMA_3_1_8B


@pytest.fixture
def tasks(monkeypatch):
    """What an engine was to be measured for; the fit is far off."""
    tasks, fit = [], FitQuality(10, 2, 0.5, 0.01, 0.02, {})

    def profile_machine(*task):
        tasks.append(task[:-1])
        return Profile(Measured(COST, fit, [], 9.0), "V2", {})

    monkeypatch.setattr(commands, "profile_machine", profile_machine)
    return tasks


def command(tmp_path, *more):
    return run(["profile", "--model", "M", "--draft", "H", "-o", f"{tmp_path}/c.json", *more])


def test_a_profile_is_written_and_printed_and_warned_of_where_its_fit_is_far_off(
    tasks, tmp_path, capsys
):
    assert command(tmp_path, "--json", "--minutes", "3", "--draft-method", "eagle") == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["cost"]["context_s"] == COST.context_s
    assert load_cost(tmp_path / "c.json") == COST
    assert tasks == [("M", "H", "eagle", {}, 3)]
    assert command(tmp_path) == 0
    said = capsys.readouterr()
    assert "warning: the fit is off by 50.0% on held-out steps" in said.err
    assert "model runner V2" in said.out


def test_without_vllm_it_says_what_is_missing(mistake, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    said = mistake("profile", "--model", "M", "-o", tmp_path / "c.json")
    assert "profiling needs vLLM" in said


LINE = {"prompt_token_ids": [1], "output_token_ids": [2, 3]}


def test_import_prints_json_to_standard_output_alone(tmp_path):
    (tmp_path / "chat.jsonl").write_text(json.dumps(LINE))
    arguments = ["jsonl", str(tmp_path / "chat.jsonl"), "-o", str(tmp_path / "t")]
    words = [*arguments, "--target", "a/target", "--vocabulary-size", "128256", "--json"]
    result = CliRunner().invoke(import_command, words)
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert result.stderr == ""
    assert summary["requests"] == 1
    manifest = TraceReader(tmp_path / "t").manifest
    assert (manifest.target, manifest.vocabulary_hash) == ("a/target", "128256")
    told = CliRunner().invoke(import_command, [*arguments, "--force"])
    assert told.stdout == ""
    assert "a trace of 1 requests" in told.stderr


def test_import_says_what_neural_counts_are_good_for(tmp_path):
    def told(*accepted):
        lines = [LINE | ({} if each is None else {"neural_accepted": each}) for each in accepted]
        (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, lines)))
        arguments = ["jsonl", str(tmp_path / "chat.jsonl"), "-o", str(tmp_path / "t"), "--force"]
        return CliRunner().invoke(import_command, arguments).stderr

    assert "for n-gram drafts alone: it holds no neural counts" in told(None)
    assert "paired" not in told([None, 1])
    short = told([None, 1], [None], None)
    assert "another length than their output, and so not paired with it: 1" in short


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
    (tmp_path / "p.jsonl").write_text('{"text": "a", "workload": "w", "id": "1"}')
    (tmp_path / "empty.jsonl").touch()
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


RECORD = "record --model M --prompts p.jsonl"
MISTAKES = {
    "": "Missing command (see 'adaspec --help')",
    "inspec": "no command 'inspec'; did you mean 'inspect'?",
    "inspect --jsno": "option '--jsno'. Did you mean",
    "inspect nowhere --json": "nothing there",
    "inspect p.jsonl": "'adaspec import' makes a trace of them",
    "inspect one another": "(see 'adaspec inspect --help')",
    "eval /nowhere": "/nowhere: there is no such folder",
    "eval TRACE TRACE": "request '0-0' of workload 'edits' is already in",
    "eval TRACE --workload tlk": "workload is 'tlk'; did you mean 'talk'? (known: edits, talk)",
    "eval TRACE --exclude-request talk/0-99": "'talk/0-99' to exclude; did you mean 'talk/0-",
    "eval TRACE --policy python:json": "write python:MODULE:NAME",
    "eval TRACE --policy python:no_such:X": "ModuleNotFoundError: No module named 'no_such'",
    "eval TRACE --policy python:broken_policies:X": "RuntimeError: no such table",
    "eval TRACE --policy python:own_policies:Plian": "did you mean 'Plain'?",
    "eval TRACE --policy python:own_policies:Wants": "takes no arguments",
    "eval TRACE --policy python:own_policies:Old": "'forwards(batch)': it went in 0.2; write a",
    "eval TRACE --policy python:json:JSONDecoder": "is no policy: it has no method 'decide'",
    "eval TRACE --policy python:own_policies:Plain": "replay it with --engine sync",
    "eval TRACE --policy hybrid:4:5:9": "the trace's accepted counts end at 8",
    "eval TRACE --policy trtllm:9": "drafts 9 neural tokens",
    "eval BARE --policy fixed:neural:1": "with a neural drafter, but the trace recorded none",
    "eval BARE --policy budget:2": "with a neural drafter, but the trace recorded none",
    "eval BARE --policy oracle:combine": "with a neural drafter, but the trace recorded none",
    "eval TRACE --concurrency 1,,8": "--concurrency",
    "eval TRACE --seed -1": "--seed",
    "eval TRACE --orders 0": "orders is 0",
    "eval TRACE --arrivals poisson:0": "write poisson:RATE, each above 0",
    "eval TRACE --arrivals bursts:1:2": "write bursts:LOW:HIGH:SECONDS",
    "eval TRACE --arrivals poison:3": "did you mean 'poisson'",
    "eval TRACE --slo-tpot-ms -3": "slo_tpot_ms is -3",
    "eval TRACE --max-step-ms 1": "a step of one request without drafts takes",
    "eval TRACE -o own_policies.py/report": "(Not a directory)",
    "train nowhere -o out": "there is no such folder",
    "train TRACE -o out": "too few requests",
    "train TRACE -o out --exclude-workload talk --exclude-workload edits": "exclude fewer",
    "train TRACE": "Missing option '-o'",
    "train TRACE -o out --exclude-workload edit": "did you mean 'edits'?",
    "train TRACE -o out --cost h100-llama-3-8b": "did you mean 'h100-llama-3.1-8b'?",
    "train TRACE -o out --cost specdecode-bench": "use 'h100-llama-3.1-8b-paper'",
    "train TRACE -o out --cost nowhere.json": "no such cost file",
    "train TRACE -o out --cost .": "not a file",
    "train TRACE -o out --cost h200": "a JSON file, is 'h200' (known: h100",
    "train nowhere -o TRACE": "add --force",
    "train TRACE --crossfit 25": "5 different requests (turns of a dialogue count as one)",
    "train TRACE --crossfit 2 -o TRACE --force": "so --force will not replace it",
    "train TRACE --crossfit 2 -o TRACE": "exists: choose another folder",
    "train TRACE --crossfit 2 --dask tcp://127.0.0.1:9": "leave --dask out",
    "eval traces --protocol specdecode-bench": f": it went in 0.2; {GONE['--protocol']}",
    "eval traces --cap 20": f": it went in 0.2; {GONE['--cap']}",
    "train traces --memory -o policy": f": it went in 0.2; {GONE['--memory']}",
    "train traces -o policy --crossfit-report c": f": it went in 0.2; {GONE['--crossfit-report']}",
    "record --max-tokens abc": "'abc' is not a valid integer",
    f"{RECORD} -o p.jsonl": "choose a",
    f"{RECORD} -o /proc/traces": "choose a",
    f"{RECORD} -o {'x' * 250}": "choose a",
    f"{RECORD} -o out --draft-method eagle": "--draft-method eagle says what --draft is",
    f"{RECORD} -o out --draft H --draft-method egale": "'egale'",
    "doctor --model M --draft-method eagle": "--draft-method eagle says what --draft is",
    "doctor --model M --draft H --draft-method egale": "draft_model",
    "profile --model M -o c.json --draft-method eagle": "eagle says what --draft is",
    "import jsonl nowhere -o out": "there is no such file",
    "import specdecode-bench TRACE -o out": "holds no combined_*.jsonl or",
    "import specdecode-bench empty.jsonl -o out": "nothing to import was found",
    "import spec-bench empty.jsonl -o out": "specdecode-bench",
    "import texts empty.jsonl -o out": "format 'texts' needs a tokenizer",
    "import jsonl empty.jsonl -o out --tokenizer M": "format 'texts' needs a tokenizer",
    "record --target NAME": f": it went in 0.2; {GONE['--target']}",
    "record --max-trace-bytes 9": f": it went in 0.2; {GONE['--max-trace-bytes']}",
    "bench decide": f": it went in 0.2; {GONE['bench']}",
    "profile --model M": "-o",
    "profile -o c.json": "--model",
    "profile --model M -o nowhere/c.json": "no such folder",
    "profile --model M -o c.json --engine [1]": "is not a JSON object",
    'profile --model M -o c.json --engine {"a":NaN}': "broken JSON",
    "profile --model M -o c.json --minutes 0": "--minutes",
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_said_in_one_line_before_the_work(
    mistake, trace, bare_trace, own, monkeypatch, words, said
):
    works = {evaluation: ["evaluate_loop"], commands: ["profile_machine", "prepare_vllm"]}
    for owner, names in works.items():
        for name in names:
            monkeypatch.setattr(owner, name, lambda *_: pytest.fail("it went on"))
    paths = {"TRACE": trace, "BARE": bare_trace}
    assert said in mistake(*(paths.get(word, word) for word in words.split()))


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
