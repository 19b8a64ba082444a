"""How far vLLM's drafter runs; its own part is played by a stand-in."""

import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from adaspec.vllm.proposers import HeadMixin  # noqa: E402

LIMIT = 100


class Proposer:
    """vLLM's: it drafts as many tokens as it is told."""

    needs_extra_input_slots = True
    max_model_len = 400
    num_speculative_tokens = 8

    def __init__(self):
        self.calls = []

    def propose(self, **named):
        self.calls.append(named["num_speculative_tokens"])


class Drafter(HeadMixin, Proposer):
    adaspec_limit = LIMIT


class Session:
    """Wants three tokens wherever the drafter can run."""

    setup = types.SimpleNamespace(neural_cap=8)
    keeps_alive = True

    def __init__(self):
        self.ran = []

    def forwards(self, possible):
        return 3 if possible else 0

    def drafter_ran(self, drafting, keep_alive):
        self.ran.append((drafting, keep_alive))

    def finish(self):
        return "proposed"


def draft(longest, **changes):
    drafter = Drafter()
    drafter.adaspec = Session()
    for name, value in changes.items():
        setattr(drafter, name, value)
    found = drafter.propose(
        target_positions=torch.arange(4),
        common_attn_metadata=types.SimpleNamespace(max_seq_len=longest),
    )
    assert found == "proposed"
    return drafter


def test_a_draft_model_runs_as_long_as_all_its_positions_are_ones_it_knows():
    assert draft(LIMIT - 8).calls == [3]
    for longest in (LIMIT - 7, LIMIT, 3 * LIMIT):
        beyond = draft(longest)
        assert beyond.calls == []  # not even to be kept up
        assert beyond.adaspec.ran == [(0, 0)]


def test_a_head_runs_on_for_its_positions_can_be_held_back():
    assert draft(3 * LIMIT, needs_extra_input_slots=False).calls == [3]
