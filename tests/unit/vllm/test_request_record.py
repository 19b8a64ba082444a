import numpy as np
import pytest

from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES, LoggedStep
from adaspec.trace.soundness import check_request, check_step
from adaspec.vllm.events import source_of
from adaspec.vllm.request_record import (
    SERVED,
    UNKNOWN,
    RequestRecord,
    engine_id,
    trace_key,
)

CAP = 3


def whole(output, drafts):
    """The record of one request that was drafted for at every position."""
    made = RequestRecord("w", "7", np.array([1, 2], np.int32), recorded=True, max_tokens=4)
    for position, draft in enumerate(drafts, 1):
        made.extend(position, np.array(output[:position], np.int32))
        made.add_draft(np.array(draft, np.int32), np.zeros((CAP, 3), np.float32), CAP)
    return made


def logged(position, context_tokens, running, neural_len, ngram_len, tokens, accepted):
    """A step as the recorder adds it."""
    return LoggedStep(
        "w",
        "7",
        step=0,
        draft_len=len(tokens),
        accepted=accepted,
        source=source_of(neural_len, ngram_len),
        position=position,
        context_tokens=context_tokens,
        running=running,
        neural_len=neural_len,
        ngram_len=ngram_len,
        drafted_tokens=np.array(tokens, np.int32),
    )


def test_accepted_is_the_common_prefix_of_the_draft_and_what_came():
    output = [5, 6, 7, 8]
    drafts = [[6, 7, 8], [7, 9, 8], [9, 9, 9], [1, 2, 3]]
    made = whole(output, drafts).dense_row(CAP)
    assert made.neural_accepted.tolist() == [-1, 3, 1, 0]
    assert made.output_tokens.tolist() == output
    assert made.drafted_tokens[1:].tolist() == drafts[:3]
    assert made.is_cut_off
    manifest = Manifest(kind="dense", neural_cap=CAP, draft_cap=CAP, confidences=CONFIDENCES)
    check_request(made, manifest, "here")


def test_a_missed_position_or_a_draft_that_ended_early_makes_no_dense_row():
    made = whole([5, 6, 7], [[6, 7, 8]])
    made.extend(3, np.array([6, 7], np.int32))
    made.add_draft(np.zeros(CAP, np.int32), np.zeros((CAP, 3), np.float32), CAP)
    assert made.dense_row(CAP) is None
    made = whole([5], [])
    made.extend(1, np.array([5], np.int32))
    made.add_draft(np.zeros(1, np.int32), np.zeros((1, 3), np.float32), CAP)
    assert made.dense_row(CAP) is None


def test_a_logged_request_has_its_text_at_its_first_step_alone():
    made = RequestRecord("w", "7", np.array([1, 2], np.int32), max_tokens=3)
    for position, token in enumerate((5, 6, 7), 1):
        made.extend(position, np.array([token], np.int32))
        made.steps.append(logged(position, 2 + position, 1, 1, 0, [6], 0))
    first, *others = made.logged_rows()
    assert first.prompt_tokens.tolist() == [1, 2]
    assert first.output_tokens.tolist() == [5, 6, 7]
    assert (first.max_tokens, others[0].max_tokens) == (3, None)
    assert all(step.prompt_tokens is None and step.output_tokens is None for step in others)
    for step in (first, *others):
        check_step(step, "here")


def test_a_text_with_a_gap_is_not_told_and_what_came_behind_it_not_guessed():
    for accepted, expected in ((0, [1, 4, 5, 6]), (UNKNOWN, [])):
        made = RequestRecord("w", "7", np.array([1, 2], np.int32))
        for position, token in ((1, 5), (4, 8), (5, 9), (6, 3)):
            made.extend(position, np.array([token], np.int32))
            made.steps.append(logged(position, 2 + position, 1, 1, 0, [4], accepted))
        steps = list(made.logged_rows())
        assert [step.position for step in steps] == expected
        assert all(step.prompt_tokens is None for step in steps)


@pytest.mark.parametrize(
    ("workload", "id"), [("chat", "7"), ("a:b", "c/d e"), ("ü%", "::"), ("x", "1_2")]
)
@pytest.mark.parametrize("around", ["{}", "{}-1a2b3c4d", "cmpl-{}-0-1a2b3c4d"])
def test_a_name_survives_what_an_engine_puts_around_it(workload, id, around):
    assert trace_key(around.format(engine_id(workload, id))) == (workload, id)


def test_samples_are_told_apart_and_a_request_without_a_name_goes_by_the_engines():
    assert trace_key(f"2_{engine_id('chat', '7')}-1a2b") == ("chat", "7#2")
    assert trace_key("cmpl-1a2b-0") == (SERVED, "cmpl-1a2b-0")
