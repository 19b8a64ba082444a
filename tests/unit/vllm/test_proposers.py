"""How far vLLM's drafter runs; its own part is played by a stand-in."""

import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from adaspec.vllm.v1.proposers import HeadMixin  # noqa: E402

LIMIT = 100


class Proposer:
    """vLLM's: it drafts as many tokens as it is told."""

    needs_extra_input_slots = True
    max_model_len = 400
    num_speculative_tokens = 8

    def propose(self, **named):
        self.calls.append(named["num_speculative_tokens"])


class Drafter(HeadMixin, Proposer):
    """Follows a session that wants three tokens wherever the drafter can run."""

    adaspec_limit, adaspec_most = LIMIT, 8

    def __init__(self):
        self.calls = []
        self.adaspec = types.SimpleNamespace(
            forwards=3, needs_keep_alive=True, proposed=lambda: "proposed"
        )


def test_a_draft_model_runs_as_long_as_all_its_positions_are_known_to_it_and_a_head_runs_on():
    for longest, is_head, calls in (
        (LIMIT - 8, False, [3]),
        (LIMIT - 7, False, []),  # not even to be kept up
        (3 * LIMIT, False, []),
        (3 * LIMIT, True, [3]),  # its positions can be held back
    ):
        drafter = Drafter()
        drafter.needs_extra_input_slots = not is_head
        metadata = types.SimpleNamespace(max_seq_len=longest)
        positions = torch.arange(4)
        found = drafter.propose(target_positions=positions, common_attn_metadata=metadata)
        assert found == "proposed"
        assert drafter.calls == calls
