"""`adaspec profile`, with the engine left out: what it writes, prints and refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adaspec.bench.profile import profile as profiling
from adaspec.bench.profile.profile import Noise, Profile
from adaspec.cli.main import run
from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.load import FitReport, load_cost

COST = H100_LLAMA_3_1_8B
FIT = FitReport(10, 2, 0.01, 0.01, 0.02, {"fixed_s": 1e-4}, {}, ["context_s"], 0)


@pytest.fixture
def asked(monkeypatch):
    tasks = []

    def profile(spread):
        def profile_machine(subject, grid, report):
            tasks.append((subject, grid))
            return Profile(COST, FIT, Noise(spread, 0.01, 1e-3), [], {"a": "b"}, {})

        monkeypatch.setattr(profiling, "profile_machine", profile_machine)
        return tasks

    return profile


def command(tmp_path, *more):
    return run(["profile", "--model", "M", "--draft", "H", "-o", f"{tmp_path}/c.json", *more])


def test_a_profile_is_written_and_printed(asked, tmp_path, capsys):
    tasks = asked(0.01)
    assert command(tmp_path, "--json", "--batches", "2,1") == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["cost"]["context_s"] == COST.context_s
    assert load_cost(tmp_path / "c.json") == COST
    assert document["files"] == {"cost": f"{tmp_path}/c.json"}
    [(subject, grid)] = tasks
    assert grid.batches == (1, 2)
    assert subject.draft == "H"
    assert subject.draft_method is None


def test_a_noisy_machine_is_warned_of(asked, tmp_path, capsys):
    asked(0.5)
    assert command(tmp_path) == 0
    said = capsys.readouterr()
    assert "warning: this machine was too noisy to trust" in said.err
    assert "not measured: a: b" in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "M"], "-o"),
        (["-o", "c.json"], "--model"),
        (["--model", "M", "-o", "nowhere/c.json"], "no such folder"),
        (["--model", "M", "-o", "/proc/c.json"], "/proc/c.json"),
        (["--model", "M", "-o", "c.json", "--batches", "0"], "is not a whole number from 1"),
        (["--model", "M", "-o", "c.json", "--engine", "[1]"], "is not a JSON object"),
        (["--model", "M", "-o", "c.json", "--engine", '{"a": NaN}'], "broken JSON"),
        (["--model", "M", "-o", "c.json", "--rounds", "1"], "--rounds"),
    ],
)
def test_a_users_mistake_is_one_line_before_anything_is_measured(
    words, said, asked, tmp_path, monkeypatch, mistake
):
    monkeypatch.chdir(tmp_path)
    tasks = asked(0.01)
    assert said in mistake("profile", *words)
    assert tasks == []


def test_without_vllm_it_says_what_is_missing(tmp_path):
    (tmp_path / "vllm.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path), str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "adaspec", "profile", "--model", "M", "-o", f"{tmp_path}/c.json"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "profiling needs vLLM" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
