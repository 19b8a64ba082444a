"""What a runner's requests allow of a draft, and how far vLLM's drafter runs."""

import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from adaspec.vllm.session.requests import RunningRequest  # noqa: E402
from adaspec.vllm.v1.attachment import UNLIMITED, room_of  # noqa: E402
from adaspec.vllm.v1.proposers import HeadMixin  # noqa: E402
from adaspec.vllm.v2 import attachment as attachment_v2  # noqa: E402

LIMIT = 100


def states(*asked):
    """Requests by their min_tokens and the tokens that end them; None has no parameters."""
    return [
        types.SimpleNamespace(
            sampling_params=each
            and types.SimpleNamespace(min_tokens=each[0], all_stop_token_ids=each[1])
        )
        for each in asked
    ]


@pytest.mark.parametrize(
    ("asked", "output", "room"),
    [
        # A draft ends before the length from which a request may stop.
        ([(6, {2})] * 4, [0, 4, 5, 6], [5, 1, 0, UNLIMITED]),
        ([(6, {2}), (0, {2}), (6, set()), None], [0] * 4, [5, *[UNLIMITED] * 3]),
        # Where nobody must go on, nothing is limited.
        ([(0, {2}), (3, {2}), (9, set()), None], [0, 3, 0, 0], None),
        ([], [], None),
    ],
)
def test_a_draft_has_the_room_that_its_request_leaves_it(asked, output, room):
    found = room_of(states(*asked), np.array(output, np.int32))
    assert (None if found is None else found.tolist()) == room


def test_a_request_ends_at_the_models_longest_length_whatever_it_asks_for():
    prompt = np.arange(10, dtype=np.int32)
    params = types.SimpleNamespace(
        max_tokens=100, min_tokens=0, stop_token_ids=None, eos_token_id=None
    )
    for count, is_whole in ((5, False), (6, True)):
        request = RunningRequest("one", prompt, [7] * count, params, False, max_model_len=16)
        assert request.is_whole == is_whole


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
            forwards=3,
            needs_keep_alive=True,
            note_run=lambda: None,
            proposed=lambda: "proposed",
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


def test_a_prompt_of_v2_is_taken_as_the_engine_has_it():
    """An array of 128,000 tokens takes 8 ms, while everybody waits."""
    tokens = [1, 2, 3, 4]
    data = types.SimpleNamespace(
        req_id="one",
        prefill_token_ids=tokens,
        prompt_len=3,
        sampling_params=None,
        lora_request=None,
    )
    request = attachment_v2._request(data, 16)
    assert type(request.prompt) is list
    tokens.append(5)  # vLLM's list grows with the output
    assert (request.prompt, request.output) == ([1, 2, 3], [4])
