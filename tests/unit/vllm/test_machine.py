"""What a machine is called."""

import os

import pytest

from adaspec.vllm.machine import hardware, same_hardware


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
