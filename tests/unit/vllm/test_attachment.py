import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from adaspec.vllm.session.requests import RunningRequest  # noqa: E402
from adaspec.vllm.v1 import (  # noqa: E402
    UNLIMITED,
    HeadMixin,
    room_of,
)
from adaspec.vllm.v2 import attachment as attachment_v2  # noqa: E402

LIMIT = 100


@pytest.mark.parametrize(
    ("least", "ends", "output", "room"),
    [
        # A draft ends before the length from which a request may stop.
        *((6, {2}, *each) for each in ((0, 5), (4, 1), (5, 0), (6, UNLIMITED))),
        (0, {2}, 0, UNLIMITED),
        (6, set(), 0, UNLIMITED),
    ],
)
def test_a_draft_has_the_room_that_its_request_leaves_it(least, ends, output, room):
    params = types.SimpleNamespace(min_tokens=least, all_stop_token_ids=ends)
    assert room_of(params, output) == room


def test_a_request_ends_at_the_models_longest_length_whatever_it_asks_for():
    prompt = np.arange(10, dtype=np.int32)
    params = types.SimpleNamespace(
        max_tokens=100, min_tokens=0, stop_token_ids=None, eos_token_id=None
    )
    for count, is_whole in ((5, False), (6, True)):
        request = RunningRequest("one", prompt, [7] * count, params, False, max_model_len=16)
        assert request.is_whole == is_whole


class Proposer:
    max_model_len = 400

    def propose(self, num_speculative_tokens, target_positions, **_):
        self.num_speculative_tokens = num_speculative_tokens
        self.ran.append((num_speculative_tokens, int(target_positions.max())))


class Drafter(HeadMixin, Proposer):
    """Follows a session that wants three tokens wherever the drafter can run."""

    adaspec_limit, adaspec_forwards = LIMIT, 3


def test_a_draft_model_runs_as_long_as_all_its_positions_are_known_to_it_and_a_head_runs_on():
    for longest, is_head, ran in (
        (LIMIT - 8, False, [(3, LIMIT - 9)]),
        (LIMIT - 7, False, []),  # not even to be kept up
        (3 * LIMIT, False, []),
        (3 * LIMIT, True, [(3, LIMIT - 4)]),  # its positions can be held back
    ):
        drafter = Drafter()
        drafter.needs_extra_input_slots = not is_head
        drafter.ran, drafter.num_speculative_tokens, drafter.adaspec_evidence = [], 8, None
        metadata = types.SimpleNamespace(max_seq_len=longest)
        drafter.propose(target_positions=torch.arange(longest), common_attn_metadata=metadata)
        assert drafter.ran == ran
        assert drafter.num_speculative_tokens == 8
        assert (drafter.adaspec_evidence is not None) == bool(ran)


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
