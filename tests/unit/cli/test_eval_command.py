"""`adaspec eval` from the outside: what it prints, and what it says of mistakes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import Workload, write_synthetic

from adaspec.cli.main import run
from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.errors import AdaspecError
from adaspec.evaluate import evaluation
from adaspec.evaluate.evaluation import note_costs
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import LoggedStep
from adaspec.trace.writer import TraceWriter

WORKLOADS = (
    Workload("edits", (30, 60), (16, 40), 0.6, 12.0, 0.3, 0.8, 0.3),
    Workload("talk", (20, 40), (16, 40), 0.05, 5.0, 0.5, 0.75, 0.35),
)
QUICK = ["--concurrency", "2", "--orders", "1", "--resamples", "2", "--workload", "talk"]

OWN = """
import pathlib
import numpy as np
from adaspec.policy.protocol import Proposal

class Plain:
    def start(self, setup): self.steps = 0
    def admit(self, arrival): return True
    def plan(self, batch): return 1
    def proceed(self, batch, drafts): return True
    def settle(self, batch, drafts):
        none = np.zeros(len(batch), np.int32)
        return Proposal(none + drafts.count, none)
    def learn(self, batch, proposal, outcome): self.steps += 1
    def release(self, slots): pass

class Raises(Plain):
    def settle(self, batch, drafts):
        if self.steps == 20: raise ValueError("lost my way")
        return super().settle(batch, drafts)

class PlansNan(Plain):
    def plan(self, batch): return float("nan")

class ProposesNan(Plain):
    def settle(self, batch, drafts):
        return Proposal(np.full(len(batch), np.nan), np.zeros(len(batch), np.int32))

class ProposesNothing(Plain):
    def settle(self, batch, drafts): return None

class ProposesTooMuch(Plain):
    def settle(self, batch, drafts):
        return Proposal(np.full(len(batch), 2**40), np.zeros(len(batch), np.int64))

class AdmitsNone(Plain):
    def admit(self, arrival): pass

class KeepsMaybe(Plain):
    def keep(self, batch): return "maybe"

class Leaves(Plain):
    def plan(self, batch): raise SystemExit(0)

class CopiesFromAfar(Plain):
    def settle(self, batch, drafts):
        none = np.zeros(len(batch), np.int32)
        return Proposal(none, none, np.full(len(batch), np.iinfo(np.int64).min))

class FailsToStart(Plain):
    def start(self, setup): raise KeyError("table")

class WritesBeside(Plain):
    def start(self, setup):
        super().start(setup)
        pathlib.Path("report").mkdir(exist_ok=True)
        pathlib.Path("report/notes.txt").write_text("theirs")

class Wants(Plain):
    def __init__(self, knob): pass
"""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace"
    write_synthetic(path, 0, WORKLOADS, requests_per_workload=5)
    return path


@pytest.fixture
def trace(pristine, tmp_path):
    """A trace that a test may bend."""
    return Path(shutil.copytree(pristine, tmp_path / "trace"))


@pytest.fixture
def mistake(capsys, tmp_path):
    """The one line that `adaspec eval ...` says of a mistake, having left nothing behind."""

    def said(*arguments):
        before = sorted(tmp_path.rglob("*"))
        assert run(["eval", *map(str, arguments)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("adaspec: error: ")
        assert err.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before
        return err.removeprefix("adaspec: error: ").rstrip("\n")

    return said


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_policies.py").write_text(OWN)
    (tmp_path / "broken_policies.py").write_text("raise RuntimeError('no such table')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("own_policies", None)


def bend(trace, change):
    """Let `change` alter the rows of the only shard, as another program might write them."""
    (shard,) = trace.glob("part-*.parquet")
    table = pq.read_table(shard)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), shard)


# --- what it prints -----------------------------------------------------------------------------


def test_the_page_of_a_written_report_is_made_again_from_its_json(pristine, tmp_path, capsys):
    folder, again = tmp_path / "report", tmp_path / "page.html"
    assert run(["eval", str(pristine), "-o", str(folder), *QUICK]) == 0
    tables = capsys.readouterr().out
    assert run(["inspect", str(folder), "-o", str(again)]) == 0
    assert capsys.readouterr().out == tables
    assert again.read_bytes() == (folder / "report.html").read_bytes()
    assert run(["inspect", str(folder / "report.json"), "-o", str(again)]) == 2
    assert "--force" in capsys.readouterr().err
    assert run(["inspect", str(pristine), "-o", str(again)]) == 2
    assert "only a report has a page" in capsys.readouterr().err
    for broken in ('{"schema": 1}', '{"schema": 2, "rows": []}', "[]", "{"):
        (folder / "report.json").write_text(broken)
        assert run(["inspect", str(folder)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_json_stands_alone_and_is_what_a_folder_holds_by_two_processes_too(
    pristine, tmp_path, capsys
):
    evaluation = ["eval", str(pristine), "--policy", "hybrid", "--json", *QUICK[:-2]]
    assert run([*evaluation, "--jobs", "1"]) == 0
    alone, err = capsys.readouterr()
    assert err == ""
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "report.json").write_text("{}")
    assert run([*evaluation, "--jobs", "2", "-o", str(folder), "--force"]) == 0
    printed, err = capsys.readouterr()
    assert err.splitlines() == [f"report written to {folder}"]
    assert json.loads(printed) == json.loads((folder / "report.json").read_text())
    assert (folder / "report.html").is_file()
    documents = [json.loads(each) for each in (alone, printed)]
    assert all(each.pop("command").startswith("adaspec") for each in documents)
    assert documents[0] == documents[1]


def test_a_policy_of_ones_own_is_replayed_and_clocked(pristine, own, capsys):
    command = ["eval", str(pristine), "--policy", "python:own_policies:Plain", "--json"]
    assert run([*command, "--jobs", "1", *QUICK]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["policy"]: row for row in report["rows"] if row["workload"] == "talk"}
    mine = rows["python:own_policies:Plain"]
    assert mine["drafted_per_step"] == 1
    assert mine["neural_steps_share"] == 1
    assert report["headline"][0]["decide_share_of_step"] > 0


def test_a_report_says_whose_order_of_events_it_shows(pristine, capsys):
    for engine in ("sync", "async"):
        command = ["eval", str(pristine), "--policy", "fixed:neural:2", "--engine", engine]
        assert run([*command, "--jobs", "1", *QUICK]) == 0
        shown = capsys.readouterr().out
        assert f"{engine} engine" in " ".join(shown.split())


def test_what_an_async_engine_cannot_run_is_refused(mistake, trace, own):
    late = ["--engine", "async"]
    assert "'budget'" in mistake(trace, *late, "--policy", "python:own_policies:Plain")


# --- mistakes in traces -------------------------------------------------------------------------


def test_traces_that_cannot_be_read_together_are_named(mistake, trace, tmp_path):
    assert f"{tmp_path}/none: there is no such folder" in mistake(tmp_path / "none")
    again = Path(shutil.copytree(trace, tmp_path / "again"))
    assert "request '0-0' of workload 'edits' is already in" in mistake(trace, again)
    bend(trace, lambda rows: rows[1].update(id=rows[0]["id"]))
    assert "is already in" in mistake(trace)


def test_a_logged_trace_without_text_is_refused(mistake, tmp_path):
    with TraceWriter(tmp_path / "log", Manifest(kind="logged", target="a/target")) as writer:
        writer.add(LoggedStep("chat", "0", 0, draft_len=5, accepted=2))
    said = mistake(tmp_path / "log")
    assert "log: no request of this logged trace is of use (1 without their text)" in said


def test_a_selection_that_leaves_nothing_says_why_and_what_to_do(mistake, trace):
    said = mistake(trace, "--max-output-tokens", "15")
    assert "no request is left to replay" in said
    assert "longer than 15" in said
    assert "raise --max-output-tokens" in said


def test_unknown_workloads_and_requests_are_answered_with_the_nearest(mistake, trace):
    assert "no workload 'tlk'; did you mean 'talk'? (has: edits, talk)" in mistake(
        trace, "--workload", "tlk"
    )
    said = mistake(trace, "--exclude-request", "talk/0-99")
    assert "no request 'talk/0-99' to exclude; did you mean 'talk/0-" in said
    assert "WORKLOAD/ID" in said


# --- mistakes in policies -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("hybird:4", "did you mean 'hybrid'?"),
        ("fixed:neural:9", "the trace's accepted counts end at 8"),
        ("", "the policy spec is empty"),
        ("nowhere/mine", "'nowhere/mine': there is no such folder"),
        ("python:json", "write python:MODULE:NAME"),
    ],
)
def test_a_policy_that_cannot_be_named_so_is_refused(mistake, trace, spec, said):
    assert said in mistake(trace, "--policy", spec)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_such_module:X", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("broken_policies:X", "RuntimeError: no such table"),
        ("own_policies:Plian", "did you mean 'Plain'?"),
        ("own_policies:Wants", "takes no arguments"),
        ("json:JSONDecoder", "is no policy: it lacks start, admit"),
    ],
)
def test_a_policy_of_ones_own_that_cannot_be_made_is_refused(mistake, trace, own, target, said):
    assert said in mistake(trace, "--policy", f"python:{target}", *QUICK)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FailsToStart", "failed in start: KeyError: 'table'"),
        ("PlansNan", "answers plan with nan: a whole number is expected"),
        ("ProposesNan", "answers settle with neural_len as an array of float64"),
        ("ProposesNothing", "answers settle with None: a Proposal is expected"),
        ("ProposesTooMuch", "neural_len of at most 32 bits"),
        ("AdmitsNone", "answers admit with None: True or False is expected"),
        ("Leaves", "failed in plan: SystemExit: 0"),
        ("CopiesFromAfar", "ngram_start of at most 32 bits"),
        ("KeepsMaybe", "answers keep with 'maybe': True or False is expected"),
    ],
)
def test_a_policy_that_fails_is_named_with_the_stage(pristine, own, name, said):
    recording = build_recording(list(TraceReader(pristine).requests("talk")), 8)
    player = Player(recording, H100_LLAMA_3_1_8B, 48)
    with pytest.raises(AdaspecError) as caught:
        player.play(parse_contender(f"python:own_policies:{name}"), np.arange(5, dtype=np.int32), 2)
    assert str(caught.value).startswith(f"policy 'python:own_policies:{name}' ")
    assert said in str(caught.value)


def test_a_policy_that_fails_ends_the_evaluation_in_one_line(mistake, trace, own, tmp_path):
    spec = "python:own_policies:Raises"
    found = mistake(trace, "--policy", spec, "-o", tmp_path / "report", *QUICK)
    assert f"policy '{spec}' failed in settle: ValueError: lost my way" in found


# --- mistakes in options and surroundings -------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--concurrency", text) for text in ("0", "", "1,,8", "1.5", "5000", "1;8")),
        ("--seed", "-1"),
        ("--orders", "0"),
        ("--cap", "0"),
        ("--resamples", "-1"),
        ("--jobs", "-1"),
        ("--keep-alive", "-1"),
        ("--max-output-tokens", "0"),
        ("--protocol", "specdec"),
    ],
)
def test_an_option_out_of_range_is_named(mistake, trace, option, value):
    assert option in mistake(trace, option, value)


@pytest.mark.parametrize(
    "given",
    [
        ["--cost", "h100-llama-3.1-8b"],
        ["--no-prefill"],
        ["--free-decisions"],
        ["--stress-splices"],
        ["--keep-alive", "1"],
        ["--orders", "3"],
        ["--resamples", "9"],
        ["--cap", "48"],
        ["--max-output-tokens", "none"],
    ],
)
def test_a_protocol_refuses_what_it_would_ignore_even_at_its_default(mistake, trace, given):
    base = [trace, "--protocol", "specdecode-bench"]
    assert "name one" in mistake(*base)
    base += ["--policy", "fixed:neural:3"]
    assert mistake(*base, *given).startswith(f"--protocol specdecode-bench fixes what {given[0]}")


def test_a_report_goes_nowhere_but_to_a_new_folder_or_over_a_report(mistake, trace, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "notes.txt").touch()
    assert "exists: choose another folder, or add --force" in mistake(trace, "-o", there)
    assert "holds no report.json" in mistake(trace, "-o", there, "--force")
    assert "(Not a directory)" in mistake(trace, "-o", there / "notes.txt" / "report")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/proc/report", "/proc/report: cannot be written"),
        ("x" * 250, "cannot be written (File name too long)"),
    ],
)
def test_a_place_that_takes_no_report_is_refused_before_the_evaluation(
    mistake, trace, tmp_path, monkeypatch, place, said
):
    monkeypatch.setattr(evaluation, "evaluate", lambda *_: pytest.fail("it was evaluated"))
    assert said in mistake(trace, "-o", tmp_path / place)


@pytest.mark.parametrize(
    ("force", "said"),
    [
        ([], "exists: choose another folder"),
        (["--force"], "holds no report.json, so --force will not"),
    ],
)
def test_what_came_to_the_reports_place_during_the_evaluation_stays(
    trace, tmp_path, own, capsys, force, said
):
    policy = "python:own_policies:WritesBeside"
    more = [*QUICK, "--jobs", "1", *force]
    assert run(["eval", str(trace), "--policy", policy, "-o", "report", *more]) == 2
    assert (tmp_path / "report" / "notes.txt").read_text() == "theirs"
    assert f"report: {said}" in capsys.readouterr().err


def test_a_full_disk_while_the_report_is_written_leaves_nothing(mistake, trace, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        said = mistake(trace, "-o", tmp_path / "report", *QUICK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "report: cannot be written (File too large)" in said
    assert not list(tmp_path.glob("*report*"))


def test_an_interrupted_evaluation_leaves_nothing_and_says_so(pristine, tmp_path):
    command = [sys.executable, "-m", "adaspec", "eval", str(pristine), "-o", str(tmp_path / "r")]
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [*command, "--orders", "1000", "--json"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "TERM": "xterm"},
        # Whoever runs the tests in the background may ignore interrupts, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(terminal)
    shown = b""
    try:
        # Its bar says that it is at work, in threads of its own.
        while b"static grids" not in shown:
            assert process.poll() is None, shown
            shown += os.read(screen, 1 << 16)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # a terminal that nobody holds any more
            while read := os.read(screen, 1 << 16):
                shown += read
        out, _ = process.communicate()
    finally:
        process.kill()
        os.close(screen)
    assert (process.returncode, out) == (130, b""), shown
    assert shown.endswith(b"adaspec: error: interrupted\r\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("measured", "warned"), [("org/Other", True), ("models/target", False), (None, False)]
)
def test_costs_of_another_model_than_the_traces_are_warned_of(measured, warned):
    report = {"notes": [], "traces": {"target": "org/Target"}}
    note_costs(report, replace(H100_LLAMA_3_1_8B, target=measured), given=True)
    assert bool(report["notes"]) is warned
    assert all("measured with org/Other" in note for note in report["notes"])
