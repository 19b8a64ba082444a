"""`adaspec profile`, with the engine left out: what it writes, prints and refuses."""

import json
import sys

import pytest

from adaspec.cli.main import run
from adaspec.cost.load import H100_LLAMA_3_1_8B, FitQuality, load_cost
from adaspec.vllm import commands
from adaspec.vllm.commands import Profile
from adaspec.vllm.measuring import Measured

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
        (["--model", "M", "-o", "/proc/c.json"], "/proc/c.json"),
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
