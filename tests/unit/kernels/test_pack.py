import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import DEVICE, torch

from adaspec.kernels.serving import NUMBERS
from adaspec.policy.budget import GAINS
from adaspec.vllm.session import report
from adaspec.vllm.session.report import SINGLE, Chosen, Layout, StepReport

NEURAL_CAP, VOCABULARY = 5, 90


def chosen_of(seed, rows, cap, forwards):
    """What a predictor might choose in a step, in views as its own are, and what is allowed."""
    draw = torch.Generator().manual_seed(seed)

    def whole(low, high, *shape):
        return torch.randint(low, high, shape, generator=draw)

    length = whole(0, cap + 1, rows, 1)
    inside = torch.arange(cap) < length
    facts = whole(0, 3000, rows, 9)
    survival = torch.rand((rows, cap), generator=draw, dtype=torch.float64).cumprod(1)
    chosen = Chosen(
        # Some tokens are none that the target knows.
        tokens=whole(0, VOCABULARY + 4, rows, cap).where(inside, -1),
        survival=survival.where(inside, 0.0),
        neural=whole(0, NEURAL_CAP + 1, rows),
        decides=whole(0, 4, rows) > 0,
        context=facts[:, 2],
        sampled=whole(0, cap + 2, rows).int(),
        rejected=whole(0, cap + 1, rows).int(),
        gain=torch.rand((rows, GAINS), generator=draw, dtype=torch.float64),
        emitted=whole(-1, VOCABULARY, rows, cap + 1),
        drafted=whole(0, VOCABULARY, rows, NEURAL_CAP + 2)[:, :forwards],
        confidences=torch.randn((NEURAL_CAP, rows + 3, 3), generator=draw)[:, :rows],
    )
    return chosen, whole(0, cap + 2, rows).int()


@pytest.mark.parametrize("limited", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 6),
    cap=st.integers(1, 17),
    forwards=st.integers(0, NEURAL_CAP),
)
def test_the_kernel_packs_as_the_host_does(limited, seed, rows, cap, forwards):
    chosen, allowed = chosen_of(seed, rows, cap, forwards)
    allowed = allowed if limited else None
    layout = Layout(cap, NEURAL_CAP)
    expected = report.pack_on_host(layout, chosen, allowed, VOCABULARY)
    there = Chosen(*(each.to(DEVICE) for each in chosen))
    found = report.pack_on_device(
        layout, there, None if allowed is None else allowed.to(DEVICE), VOCABULARY
    )
    assert torch.equal(found.tokens.cpu(), expected.tokens)
    assert torch.equal(found.survival.cpu(), expected.survival.float())
    assert found.report.shape == (rows, layout.width(forwards))
    said = layout.unpacked(found.report.cpu().numpy(), forwards)
    for name, ours, theirs in zip(StepReport._fields, expected.report, said, strict=True):
        np.testing.assert_array_equal(theirs, np.asarray(ours).astype(np.float32), name)
    assert len(SINGLE) + GAINS == NUMBERS.value
