"""The kernel packs a step's drafts as the host does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import DEVICE, torch
from made_drafts import NEURAL_CAP, VOCABULARY, made_of

from adaspec.kernels.pack import NUMBERS
from adaspec.vllm.session.packing import Made
from adaspec.vllm.session.report import SINGLE, Layout
from adaspec.vllm.v2 import packing


@pytest.mark.parametrize("limited", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 6),
    cap=st.integers(1, 17),
    forwards=st.integers(0, NEURAL_CAP),
)
def test_the_kernel_packs_as_the_host_does(limited, seed, rows, cap, forwards):
    made, limits = made_of(seed, rows, cap, forwards)
    made = Made(*(each.to(DEVICE) for each in made))
    limits = limits.to(DEVICE) if limited else None
    layout = Layout(cap, NEURAL_CAP)
    expected = packing.pack(layout, made, limits, VOCABULARY)
    found = packing.pack_at_once(layout, made, limits, VOCABULARY)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.survival, expected.survival.float())
    assert torch.equal(found.report, expected.report)
    assert found.report.shape == (rows, layout.width(forwards))
    assert len(SINGLE) == NUMBERS.value
