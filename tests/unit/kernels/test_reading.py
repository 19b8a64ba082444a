"""A head's own logits are read where they say all that vLLM's say, and are read alike."""

from types import SimpleNamespace

import pytest
from interpreter import DEVICE, torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from adaspec.vllm.v2.speculator import own_offsets

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
