"""`train`, `profile`, `import` and `record` from the outside: what they print and refuse."""

import json
import sys

import pytest
from click.testing import CliRunner
from synthetic import TINY, synthesize, without_drafts

from adaspec.cli.import_command import command as import_command
from adaspec.cli.main import run
from adaspec.cost.load import H100_LLAMA_3_1_8B, FitQuality, load_cost
from adaspec.trace.reader import TraceReader
from adaspec.trace.writer import write_trace
from adaspec.vllm import commands
from adaspec.vllm.commands import Profile
from adaspec.vllm.measuring import Measured

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
    "train TRACE -o out --cost h200": "a JSON file, is 'h200' (known: h100",
    "train nowhere -o TRACE": "add --force",
    f"{FIT} 25": "has 24 different requests (turns of a dialogue count as one), which leaves",
    f"{FIT} 2 -o TRACE --force": "so --force will not replace it",
    f"{FIT} 2 -o TRACE": "exists: choose another folder",
    f"{FIT} 2 --dask tcp://127.0.0.1:9": "leave --dask out",
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_said_in_one_line(trace, tmp_path, monkeypatch, mistake, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in mistake(*(trace if word == "TRACE" else word for word in words.split()))


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "M"], "-o"),
        (["-o", "c.json"], "--model"),
        (["--model", "M", "-o", "nowhere/c.json"], "no such folder"),
        (["--model", "M", "-o", "c.json", "--engine", "[1]"], "is not a JSON object"),
        (["--model", "M", "-o", "c.json", "--engine", '{"a": NaN}'], "broken JSON"),
        (["--model", "M", "-o", "c.json", "--minutes", "0"], "--minutes"),
    ],
)
def test_a_users_mistake_is_one_line_before_anything_is_measured(
    words, said, tasks, tmp_path, monkeypatch, mistake
):
    monkeypatch.chdir(tmp_path)
    assert said in mistake("profile", *words)
    assert tasks == []


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


@pytest.mark.parametrize("place", ["prompts.jsonl", "/proc/traces", "x" * 250])
def test_record_refuses_a_place_that_takes_no_trace_before_it_looks_for_an_engine(
    tmp_path, mistake, monkeypatch, place
):
    (tmp_path / "prompts.jsonl").write_text('{"text": "a", "workload": "w", "id": "1"}')
    monkeypatch.setattr(commands, "prepare_vllm", lambda _: pytest.fail("it went on"))
    words = ["record", "--model", "M", "--prompts", tmp_path / "prompts.jsonl"]
    assert "choose a" in mistake(*words, "-o", tmp_path / place)
