"""Whatever is missing is said with what to do, and hides nothing else."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

from adaspec.cli.main import run
from adaspec.vllm import doctor


@pytest.fixture
def bare(monkeypatch):
    """An environment without vLLM and torch."""
    for name in ("vllm", "torch"):
        monkeypatch.setitem(sys.modules, name, None)


def found(**asked):
    return {each.part: each for each in doctor.examine(**asked)}


def test_without_vllm_the_exit_code_is_2_and_every_part_says_what_to_do(bare, capsys):
    assert run(["doctor", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    parts = {each["part"]: each for each in document["findings"]}
    assert parts["python"]["ok"] and parts["adaspec"]["ok"] and parts["policy"]["ok"]
    for name in ("torch", "vllm", "patches"):
        assert not parts[name]["ok"]
    assert all(each["advice"] for each in parts.values() if not each["ok"])
    assert "pip install" in parts["vllm"]["advice"]


def test_an_adaspec_that_is_not_whole_is_named_and_nobody_else_is_blamed():
    code = (
        "import json, sys; sys.modules['numba'] = None\n"
        "from adaspec.vllm import doctor\n"
        "print(json.dumps([[each.part, each.ok, each.advice] for each in doctor.examine()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = {part: (ok, advice) for part, ok, advice in json.loads(done.stdout.splitlines()[-1])}
    assert "install adaspec again" in parts["adaspec"][1]
    for name in ("vllm", "patches", "runner", "policy"):
        assert parts[name] == (False, "not looked at: mend 'adaspec' first")


def test_a_policy_that_cannot_be_read_is_named(bare):
    assert "polcy" in found(policy="polcy")["policy"].found
    assert not found(policy="fixed:neurl:3")["policy"].ok
    assert found(policy="fixed:neural:3")["policy"].ok


def test_a_forced_runner_is_named(bare, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert "unset VLLM_USE_V2_MODEL_RUNNER" in found()["runner"].advice


def test_plugins_that_leave_adaspec_out_are_named(bare, monkeypatch):
    point = importlib.metadata.EntryPoint(
        "adaspec", "adaspec.vllm.plugin:register", "vllm.general_plugins"
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [point])
    assert found()["plug-in"].ok
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    assert "VLLM_PLUGINS=other" in found()["plug-in"].found
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])
    assert "pip install" in found()["plug-in"].advice


def test_a_head_needs_its_target(bare):
    assert "--model" in found(draft="x")["head"].advice


def test_a_gpu_brings_the_caveat(monkeypatch):
    class Cuda:
        @staticmethod
        def is_available():
            return True

    torch = type(sys)("torch")
    torch.cuda = Cuda
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert "not measured yet" in " ".join(doctor.gpu_caveat().split())
