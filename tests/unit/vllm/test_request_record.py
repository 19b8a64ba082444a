import numpy as np
import pytest

from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES, LoggedStep
from adaspec.trace.soundness import check_request, check_step
from adaspec.vllm.request_record import (
    SERVED,
    UNKNOWN,
    RequestRecord,
    engine_id,
    trace_key,
)

CAP = 3
PROMPT = np.array([1, 2], np.int32)
OUTPUT = np.array([5, 6, 7, 8], np.int32)


def drafted(*drafts):
    """The record of a request with these drafts at positions 1, 2, .."""
    made = RequestRecord("w", "7", PROMPT, recorded=True, max_tokens=4)
    for position, draft in enumerate(drafts, 1):
        tokens = np.array(draft, np.int32)
        made.drafts[position] = tokens, np.zeros((len(tokens), 3), np.float32)
    return made


def test_accepted_is_the_common_prefix_of_the_draft_and_what_came():
    drafts = [[6, 7, 8], [7, 9, 8], [9, 9, 9], [1, 2, 3]]
    made = drafted(*drafts).dense_row(OUTPUT, CAP)
    assert made.neural_accepted.tolist() == [-1, 3, 1, 0]
    assert made.output_tokens.tolist() == OUTPUT.tolist()
    assert made.drafted_tokens[1:].tolist() == drafts[:3]
    assert made.is_cut_off
    manifest = Manifest(kind="dense", neural_cap=CAP, draft_cap=CAP, confidences=CONFIDENCES)
    check_request(made, manifest, "here")


@pytest.mark.parametrize("drafts", [[[6, 7, 8]] * 2, [[6, 7, 8], [7], [8, 9, 9]]])
def test_a_missed_position_or_a_draft_that_ended_early_makes_no_dense_row(drafts):
    assert drafted(*drafts).dense_row(OUTPUT, CAP) is None


def test_a_log_has_the_text_once_and_counts_by_it_what_nobody_verified():
    """The draft at the end reaches beyond the text: what would have come is not known."""
    made = RequestRecord("w", "7", PROMPT, max_tokens=4)
    drafts = [(1, [9], 0), (2, [7, 9], UNKNOWN), (2, [7, 8, 9], UNKNOWN), (3, [9, 9], UNKNOWN)]
    for position, tokens, accepted in drafts:
        tokens = np.array(tokens, np.int32)
        made.steps.append(
            LoggedStep("w", "7", 0, len(tokens), accepted, position=position, drafted_tokens=tokens)
        )
    first, *others = steps = made.logged_rows(OUTPUT)
    assert [(each.step, each.position, each.accepted) for each in steps] == [
        (0, 1, 0),
        (1, 2, 1),
        (2, 3, 0),
    ]
    assert first.prompt_tokens.tolist() == PROMPT.tolist()
    assert first.output_tokens.tolist() == OUTPUT.tolist()
    assert first.max_tokens == 4
    for step in others:
        assert step.prompt_tokens is step.output_tokens is step.max_tokens is None
    for step in steps:
        assert step.output_len == 4
        check_step(step, "here")


@pytest.mark.parametrize(
    ("workload", "id"), [("chat", "7"), ("a:b", "c/d e"), ("ü%", "::"), ("x", "1_2")]
)
@pytest.mark.parametrize("around", ["{}", "{}-1a2b3c4d", "cmpl-{}-0-1a2b3c4d", "2_{}-1a2b"])
def test_a_name_survives_what_an_engine_puts_around_it(workload, id, around):
    assert trace_key(around.format(engine_id(workload, id))) == (workload, id)


def test_a_request_without_a_name_goes_by_the_engines():
    assert trace_key("cmpl-1a2b-0") == (SERVED, "cmpl-1a2b-0")
