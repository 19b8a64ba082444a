from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import DEVICE, torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from adaspec.kernels import serving as kernels
from adaspec.kernels.serving import LogitsReader
from adaspec.vllm.v1 import read_logits
from adaspec.vllm.v2.speculator import Reading, own_offsets

INF, NAN = float("inf"), float("nan")
FORWARDS = 3


def compared(logits, forward=0, offsets=None):
    """Hold that a reader finds the tokens and the confidences that torch finds."""
    tokens, evidence = read_logits(logits)
    if offsets is not None:
        tokens = tokens + offsets[tokens]
    said = torch.full((FORWARDS, len(logits) + 2, 3), -7.0, device=DEVICE)
    step = torch.tensor(forward, device=DEVICE)
    with np.errstate(all="ignore"):
        found = LogitsReader(said).read(logits, step, offsets)
    assert found.dtype == torch.int64
    assert torch.equal(found, tokens)
    torch.testing.assert_close(
        said[forward, : len(logits)], evidence[:, 1:], rtol=2e-5, atol=2e-6, equal_nan=True
    )
    said[forward, : len(logits)] = -7.0
    assert (said == -7.0).all(), "what is another forward's or another row's was written"


def test_each_token_of_a_pass_has_a_place_of_its_own() -> None:
    """Behind one another as vLLM flattens them: the tokens of the first row, of the next one."""
    rows, draw = 2, torch.Generator().manual_seed(5)
    logits = torch.randn((rows * FORWARDS, 40), generator=draw).to(DEVICE)
    tokens, evidence = read_logits(logits)
    places = torch.arange(FORWARDS, dtype=torch.int32, device=DEVICE).repeat(rows)
    expected = evidence[:, 1:].unflatten(0, (rows, FORWARDS)).transpose(0, 1)
    by_torch = Reading(SimpleNamespace(num_speculative_steps=FORWARDS), rows + 1, DEVICE)
    said = torch.full((FORWARDS, rows + 1, 3), -7.0, device=DEVICE)
    assert torch.equal(LogitsReader(said).read(logits, places), tokens)
    assert (said[:, rows:] == -7.0).all()
    torch.testing.assert_close(said[:, :rows], expected, rtol=2e-5, atol=2e-6)
    assert torch.equal(by_torch.keep(logits, places), tokens)
    torch.testing.assert_close(by_torch.confidences[:, :rows], expected, rtol=2e-5, atol=2e-6)
    assert by_torch.confidences[:, rows:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 5),
    columns=st.integers(2, 300),
    block=st.sampled_from([16, 64, 512]),
    scale=st.sampled_from([0.0, 0.3, 4.0, 60.0]),
    padding=st.sampled_from([0, 1, 16]),
    special=st.sampled_from([(), (-INF,), (INF,), (NAN,), (NAN, INF, -INF)]),
)
def test_tokens_and_confidences_are_those_of_the_host(
    dtype, seed, rows, columns, block, scale, padding, special
):
    rng = np.random.default_rng(seed)
    # In tenths: bfloat16 makes many of them equal, and the first counts.
    values = np.round(rng.normal(0, scale, (rows, columns + padding)), 1)
    for value in special:
        share = rng.choice([0.02, 0.7, 1.0]) if value == -INF else 0.02
        values[rng.random(values.shape) < share] = value
    logits = torch.from_numpy(values).to(DEVICE, dtype)[:, :columns]
    offsets = np.cumsum(rng.integers(0, 3, columns)) if seed % 2 else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "BLOCK", block)
        compared(
            logits,
            seed % FORWARDS,
            None if offsets is None else torch.from_numpy(offsets).to(DEVICE),
        )


def test_a_whole_vocabulary_is_read_as_exactly_as_a_small_one():
    """Also where all but the head's own tokens are -inf, as vLLM fills them up."""
    draw = torch.Generator().manual_seed(4)
    full = torch.full((2, 128_256), -INF)
    own = torch.randperm(128_256, generator=draw)[:32_000].sort().values
    full[:, own] = torch.randn((2, 32_000), generator=draw) * torch.tensor([[1.0], [12.0]])
    offsets = (own - torch.arange(32_000)).to(DEVICE)
    for dtype in (torch.bfloat16, torch.float32):
        compared(full.to(DEVICE, dtype))
        compared(full[:, own].to(DEVICE, dtype), 1, offsets)


SIZE, OWN, ALL = 8, 20, 50
TARGETS = torch.arange(OWN) * 2 + 3


class Head:
    """vLLM's model of a head that knows a part of the target's tokens."""

    def __init__(self, targets=TARGETS, scale=1.0):
        draw = torch.Generator().manual_seed(6)
        self.lm_head = SimpleNamespace(embedding_dim=SIZE)
        self.weights = torch.randn((OWN, SIZE), generator=draw).to(DEVICE)
        self.draft_id_to_target_id = (targets - torch.arange(OWN)).to(DEVICE)
        self.targets, self.scale = targets.to(DEVICE), scale
        self.spread = 0

    def logits_processor(self, lm_head, hidden_states):
        assert lm_head is self.lm_head
        return hidden_states @ self.weights.T

    def compute_logits(self, hidden_states):
        self.spread += 1
        logits = hidden_states.new_full((len(hidden_states), ALL), -torch.inf)
        logits[:, self.targets] = self.logits_processor(self.lm_head, hidden_states) * self.scale
        return logits


@pytest.mark.parametrize(
    ("head", "reads_own"),
    [
        (Head(), True),
        # Of equal logits the first one counts: another one in another order.
        (Head(TARGETS.flip(0)), False),
        # It does something more with its logits, or has no vocabulary of its own.
        (Head(scale=0.5), False),
        (SimpleNamespace(draft_id_to_target_id=None), False),
        (SimpleNamespace(), False),
        (SimpleNamespace(draft_id_to_target_id=torch.zeros(3)), False),
    ],
)
def test_own_logits_are_read_where_they_say_all(head, reads_own):
    speculator = SimpleNamespace(model=head, num_speculative_steps=3, dtype=torch.float32)
    speculator.compute_draft_logits = lambda hidden, _: head.compute_logits(hidden)
    offsets = own_offsets(speculator)
    assert (offsets is not None) == reads_own
    if reads_own:
        assert torch.equal(torch.arange(OWN, device=DEVICE) + offsets, head.targets)
