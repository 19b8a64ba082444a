"""The kernel packs a step's drafts as the host does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import DEVICE, torch
from made_drafts import NEURAL_CAP, VOCABULARY, made_of

from adaspec.kernels.pack import NUMBERS
from adaspec.vllm.session import packing
from adaspec.vllm.session.packing import Made
from adaspec.vllm.session.report import SINGLE, Layout, StepReport


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
    limits = limits if limited else None
    layout = Layout(cap, NEURAL_CAP)
    expected = packing.pack_on_host(layout, made, limits, VOCABULARY)
    there = Made(*(each.to(DEVICE) for each in made))
    found = packing.pack_on_device(
        layout, there, None if limits is None else limits.to(DEVICE), VOCABULARY
    )
    assert torch.equal(found.tokens.cpu(), expected.tokens)
    assert torch.equal(found.survival.cpu(), expected.survival.float())
    assert found.report.shape == (rows, layout.width(forwards))
    said = layout.unpacked(found.report.cpu().numpy(), forwards)
    for name, ours, theirs in zip(StepReport._fields, expected.report, said, strict=True):
        np.testing.assert_array_equal(theirs, np.asarray(ours).astype(np.float32), name)
    assert len(SINGLE) + 1 == NUMBERS.value
