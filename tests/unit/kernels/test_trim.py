from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import DEVICE, torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.worker.gpu.spec_decode import adaptive_verification as theirs

from adaspec.kernels import serving as kernels
from adaspec.vllm.session import drafting
from adaspec.vllm.v2 import trimming

SLOTS, BONUS = 40, 1


def manager_of(cap, device=DEVICE):
    """vLLM's manager, without what it copies to the host."""
    manager = theirs.AdaptiveVerificationManager.__new__(theirs.AdaptiveVerificationManager)
    manager.num_speculative_steps, manager.num_bonus_tokens = cap, BONUS
    manager._confidence_probs = torch.zeros((SLOTS, cap), device=device)
    manager._batch_draft_capacity = torch.empty(SLOTS, dtype=torch.int32, device=device)
    manager.query_start_loc = torch.full((SLOTS + 1,), -5, dtype=torch.int32, device=device)
    manager._num_non_draft_tokens = torch.empty_like(manager.query_start_loc[:-1])
    manager._cu_num_logits = torch.full_like(manager.query_start_loc, -5)
    return manager


def ours_of(cap, kernels, patch):
    patch.setattr(drafting, "KERNELS_ON_CPU", kernels)
    patch.setattr(drafting, "_ACCELERATORS", (DEVICE.type,) if kernels else ())
    manager = manager_of(cap, DEVICE if kernels else torch.device("cpu"))
    trimming.take_over(manager, None, None)
    return manager


@st.composite
def steps(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    rows, cap = draw(st.integers(1, SLOTS)), draw(st.sampled_from([1, 3, 12, 17]))
    survival = np.cumprod(rng.random((SLOTS, cap)), axis=1).astype(np.float32)
    if draw(st.booleans()):
        survival = np.round(survival, 1)  # many are equal, and many 0
    survival[rng.random(survival.shape) < draw(st.sampled_from([0.0, 0.1]))] = 1.0
    survival = np.minimum.accumulate(survival, axis=1)
    scheduled = rng.integers(0, cap + 1, rows)
    scheduled[rng.random(rows) < draw(st.sampled_from([0.0, 0.5]))] = 0
    others = rng.integers(1, 30, rows)
    most = int(scheduled.sum())
    budget = draw(st.sampled_from([0, 1, most - 1, most, int(rng.integers(0, most + 1))]))
    slots = torch.from_numpy(rng.permutation(SLOTS)[:rows])
    return survival, slots, scheduled, others, min(max(budget, 0), most)


def reallocated(manager, survival, slots, scheduled, others, budget):
    """What a manager makes of a step: tokens verified per row, and where rows begin."""
    names = [str(row) for row in range(len(scheduled))]
    by_name = [dict(zip(names, each.tolist(), strict=True)) for each in (scheduled, others)]
    manager._batch_budget = (*by_name, budget)
    slots = slots.to(manager.query_start_loc.device)
    batch = SimpleNamespace(num_reqs=len(names), idx_mapping=slots)
    manager.record_confidences(torch.from_numpy(survival).to(slots.device)[slots], batch)
    logits, tokens, verified = manager.reallocate_drafts(names, slots)
    assert manager._batch_budget is None
    assert logits.shape == (len(names) + 1,)
    assert verified == budget
    return logits.cpu().numpy(), tokens.cpu().numpy()


@pytest.mark.parametrize("lanes", [8, 64, 4096])
@settings(max_examples=60, deadline=None)
@given(step=steps())
def test_a_budget_takes_of_each_row_what_vllms_manager_would(lanes, step):
    survival, slots, scheduled, others, budget = step
    stock = manager_of(survival.shape[1])
    # The head's confidences are multiplied up by vLLM.
    ratios = torch.from_numpy(survival.astype(np.float64))
    ratios[:, 1:] = (ratios[:, 1:] / ratios[:, :-1]).nan_to_num(0.0, 0.0, 0.0)
    stock._confidence_probs = ratios.to(DEVICE)
    stock.record_confidences = lambda *_: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            theirs, "_assign_draft_token_budget_compiled", theirs._assign_draft_token_budget
        )
        logits, tokens = reallocated(stock, *step)
        patch.setattr(kernels, "LANES", lanes)
        on_host = reallocated(ours_of(survival.shape[1], False, patch), *step)
        our_logits, our_tokens = reallocated(ours_of(survival.shape[1], True, patch), *step)
    np.testing.assert_array_equal(our_logits, on_host[0])
    np.testing.assert_array_equal(our_tokens, on_host[1])
    rows = len(scheduled)
    assert our_logits[0] == our_tokens[0] == 0
    verified = np.diff(our_logits) - BONUS
    np.testing.assert_array_equal(np.diff(our_tokens[: rows + 1]), verified + others)
    np.testing.assert_array_equal(our_tokens[rows:], tokens[rows:])
    assert our_logits[-1] == logits[-1] == budget + rows * BONUS
    assert (verified >= 0).all()
    assert (verified <= scheduled).all()

    def taken(counts):
        chances = [survival[slots[row].item(), :count] for row, count in enumerate(counts)]
        return np.sort(np.concatenate(chances))

    # Of equally likely tokens, either may be taken.
    stock_counts = np.diff(logits) - BONUS
    np.testing.assert_array_equal(taken(verified), taken(stock_counts))
    eligible = taken(scheduled)
    if len(np.unique(eligible)) == len(eligible):
        np.testing.assert_array_equal(our_logits, logits)
        np.testing.assert_array_equal(our_tokens, tokens)


@pytest.mark.parametrize("by_kernels", [False, True])
def test_what_is_no_probability_comes_last(by_kernels, monkeypatch):
    survival = np.array([[np.nan, np.nan], [-1.0, -1.0], [0.5, 0.25], [1.0, np.inf]], np.float32)
    survival = np.vstack([survival, np.zeros((SLOTS - 4, 2), np.float32)])
    slots = torch.arange(4)
    two = np.full(4, 2)
    logits, _ = reallocated(ours_of(2, by_kernels, monkeypatch), survival, slots, two, two, 4)
    assert (np.diff(logits) - BONUS).tolist() == [0, 0, 2, 2]
