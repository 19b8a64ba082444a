"""This machine's own profile is found where one was kept, and by nobody else."""

import dataclasses
import logging
import os

import pytest

from adaspec.cost.builtin import DEFAULT, H100_LLAMA_3_1_8B
from adaspec.cost.load import FitReport, cost_document, load_cost, save_cost
from adaspec.errors import CostError
from adaspec.vllm import choice, machine
from adaspec.vllm.choice import Target, choose
from adaspec.vllm.machine import hardware, same_hardware
from adaspec.vllm.options import Options

FIT = FitReport(10, 2, 0.01, 0.01, 0.02, {}, {}, [], 0)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv(machine.FOLDER_VARIABLE, str(tmp_path / "data"))
    monkeypatch.setattr(choice, "hardware", lambda: "a machine")
    return tmp_path / "data" / "profiles"


def target(name):
    return Target(name=name, vocabulary=128, width=64, tokenizer=name)


def chosen(name="org/model", **options):
    return choose(Options(**{"policy": "none", **options}), target(name), has_head=False)


def test_a_user_without_a_home_has_no_profile_and_is_told_where_one_could_be(monkeypatch):
    monkeypatch.delenv(machine.FOLDER_VARIABLE)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert chosen().cost_name == DEFAULT
    with pytest.raises(CostError, match=f"no home: name one in .{machine.FOLDER_VARIABLE}"):
        machine.keep_profile(H100_LLAMA_3_1_8B, FIT, "org/model", None, "a machine")


@pytest.mark.parametrize(
    ("model", "drafter", "made_on"),
    [
        ("org/other", None, "a machine"),
        ("org/model", "org/head", "a machine"),
        ("org/model", None, "another machine"),
    ],
)
def test_a_profile_of_anything_else_is_not_taken(model, drafter, made_on):
    machine.keep_profile(H100_LLAMA_3_1_8B, FIT, model, drafter, made_on)
    assert chosen().cost_name == DEFAULT
    assert chosen().cost_why == "the default"


def test_what_was_asked_for_comes_first_unless_it_is_the_profile_itself(tmp_path):
    kept = machine.keep_profile(H100_LLAMA_3_1_8B, FIT, "org/model", None, "a machine")
    asked = tmp_path / "asked.json"
    save_cost(H100_LLAMA_3_1_8B, asked)
    for path, why in ((asked, "asked for"), (kept, "this machine's own profile")):
        assert chosen(cost=str(path)).cost_name == str(path)
        assert chosen(cost=str(path)).cost_why == why
    assert (chosen().cost_name, chosen().cost) == (str(kept), load_cost(kept))


def test_a_broken_profile_is_said_and_passed_over(caplog):
    path = machine.keep_profile(H100_LLAMA_3_1_8B, FIT, "org/model", None, "a machine")
    path.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert chosen().cost_name == DEFAULT
    assert f"{path}" in caplog.text and "passed over" in caplog.text


def test_a_model_is_itself_by_any_path_to_it_and_from_the_hubs_own_cache(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name / "target").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    whole = str(tmp_path / "a" / "target")
    assert machine.identity("a/target") == machine.identity(f"{whole}/") == whole
    paths = [machine.profile_path(f"{each}/target", None, "h") for each in ("a", "b")]
    assert paths[0] != paths[1]
    assert all(path.name.startswith("target-") for path in paths)
    cached = "/cache/models--org--model/snapshots/0123/"
    assert machine.identity(cached) == machine.identity("org/model") == "org/model"


@pytest.mark.parametrize(
    ("made_on", "here", "same"),
    [
        ("1x NVIDIA H100", "NVIDIA H100 80GB HBM3", True),
        ("1x NVIDIA H100", "NVIDIA H200", False),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("CPU AMD EPYC, 2 cores", "CPU AMD EPYC, 2 cores", True),
        ("CPU AMD EPYC, 2 cores", "CPU AMD EPYC, 4 cores", False),
        ("1x NVIDIA H100", "CPU AMD EPYC, 2 cores", False),
    ],
)
def test_hardware_is_the_same_where_its_words_are(made_on, here, same):
    assert same_hardware(made_on, here) is same


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be bound here")
def test_hardware_stays_the_same_when_a_worker_binds_itself_to_one_core():
    free, before = os.sched_getaffinity(0), hardware()
    assert same_hardware(before, before)
    try:
        os.sched_setaffinity(0, {min(free)})
        assert hardware() == before
    finally:
        os.sched_setaffinity(0, free)


def test_a_policy_trained_under_costs_of_ones_own_brings_them_along(monkeypatch):
    own = dataclasses.replace(H100_LLAMA_3_1_8B, name="my machine", context_s=0.5)
    policy = choice.named_policy("llama-3.1-8b-instruct-h100")
    policy.manifest = dataclasses.replace(
        policy.manifest, cost=own.name, step_costs=cost_document(own), tokenizer=None, target=None
    )
    monkeypatch.setattr(choice, "named_policy", lambda text: policy)
    found = choose(Options(policy="mine"), target("org/model"), has_head=True)
    assert (found.cost, found.cost_name, found.cost_why) == (own, "my machine", "the policy's")
    worker = choose(Options(policy="mine", cost="my machine"), target("org/model"), has_head=True)
    assert worker.cost == own
