"""What a machine is called, and which costs decide on it."""

import dataclasses
import os

import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.load import cost_document, save_cost
from adaspec.vllm import choice
from adaspec.vllm.choice import Target, choose
from adaspec.vllm.machine import hardware, same_hardware
from adaspec.vllm.options import Options


def target(name):
    return Target(name=name, vocabulary=128, width=64, tokenizer=name)


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


def test_a_policy_trained_under_costs_of_ones_own_brings_them_along(monkeypatch, tmp_path):
    own = dataclasses.replace(H100_LLAMA_3_1_8B, name="my machine", context_s=0.5)
    policy = choice.named_policy("llama-3.1-8b-instruct-h100")
    policy.manifest = dataclasses.replace(
        policy.manifest, cost=own.name, step_costs=cost_document(own), tokenizer=None, target=None
    )
    monkeypatch.setattr(choice, "named_policy", lambda text: policy)
    found = choose(Options(policy="mine"), target("org/model"), method="eagle3")
    assert (found.costs, found.cost) == (cost_document(own), "my machine")
    assert found.cost_why == "the policy's"
    asked = tmp_path / "asked.json"
    save_cost(H100_LLAMA_3_1_8B, asked)
    found = choose(Options(policy="mine", cost=str(asked)), target("org/model"), method="eagle3")
    assert (found.costs, found.cost) == (cost_document(H100_LLAMA_3_1_8B), str(asked))
