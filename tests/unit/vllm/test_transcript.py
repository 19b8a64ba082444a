import numpy as np

from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES
from adaspec.trace.soundness import check_request, check_step
from adaspec.vllm.scrambling import Scrambler
from adaspec.vllm.transcript import Plan, Transcript, common_prefix

CAP = 3


def whole(output, drafts):
    """A transcript of one request that was drafted for at every position."""
    made = Transcript("w", "7", np.array([1, 2], np.int32), recorded=True)
    for position, draft in enumerate(drafts, 1):
        made.goes_on(position, np.array(output[:position], np.int32))
        made.drafted(np.array(draft, np.int32), np.zeros((CAP, 3), np.float32), CAP)
    return made


def test_accepted_is_the_common_prefix_of_the_draft_and_what_came():
    output = [5, 6, 7, 8]
    drafts = [[6, 7, 8], [7, 9, 8], [9, 9, 9], [1, 2, 3]]
    made = whole(output, drafts).dense(CAP)
    assert made.neural_accepted.tolist() == [-1, 3, 1, 0]
    assert made.output_tokens.tolist() == output
    assert made.drafted_tokens[1:].tolist() == drafts[:3]
    manifest = Manifest(kind="dense", neural_cap=CAP, draft_cap=CAP, confidences=CONFIDENCES)
    check_request(made, manifest, "here")


def test_a_common_prefix_is_what_a_slow_count_says():
    rng = np.random.default_rng(3)
    for _ in range(50):
        output = rng.integers(0, 2, rng.integers(1, 12)).astype(np.int32)
        drafted = rng.integers(-1, 2, (len(output), CAP)).astype(np.int32)
        for at, counted in enumerate(common_prefix(drafted, output)):
            slow = 0
            while slow < CAP and at + slow < len(output) and drafted[at, slow] == output[at + slow]:
                slow += 1
            assert counted == slow


def test_a_missed_position_makes_no_dense_row():
    made = whole([5, 6, 7], [[6, 7, 8]])
    made.goes_on(3, np.array([6, 7], np.int32))
    made.drafted(np.zeros(CAP, np.int32), np.zeros((CAP, 3), np.float32), CAP)
    assert made.dense(CAP) is None


def test_a_draft_that_ended_early_makes_no_dense_row():
    made = Transcript("w", "7", np.array([1], np.int32), recorded=True)
    made.goes_on(1, np.array([5], np.int32))
    made.drafted(np.zeros(1, np.int32), np.zeros((1, 3), np.float32), CAP)
    assert made.dense(CAP) is None


def test_unknown_confidences_are_nulls():
    made = whole([5, 6, 7], [[6, 7, 8], [7, 8, 9]])
    made.drafts[0][1][0, 1] = np.inf
    assert np.isnan(made.dense(CAP).confidences[1, 0, 1])


def test_shadow_steps_are_judged_by_what_came():
    made = Transcript("w", "7", np.array([1, 2], np.int32))
    made.goes_on(1, np.array([5], np.int32))
    made.plans.append(Plan(1, 3, 2, 1, 2, [6, 7, 9], None, None))
    for position, token in ((2, 6), (3, 7), (4, 8)):
        made.goes_on(position, np.array([token], np.int32))
    # Right as far as the text goes, and no text to go on with: nobody knows.
    made.plans.append(Plan(3, 5, 2, 0, 2, [8, 9], None, None))
    made.plans.append(Plan(4, 6, 2, 0, 0, [], None, None))
    (step,) = made.logged(1.0)
    check_step(step, "here")
    assert (step.source, step.accepted, step.output_len) == ("splice", 2, 4)


def test_a_logged_request_has_its_text_at_its_first_step_alone():
    made = Transcript("w", "7", np.array([1, 2], np.int32))
    for position, token in enumerate((5, 6, 7), 1):
        made.goes_on(position, np.array([token], np.int32))
        made.plans.append(Plan(position, 2 + position, 1, 1, 0, [6], None, 0))
    first, *others = made.logged(1.0)
    assert first.prompt_tokens.tolist() == [1, 2]
    assert first.output_tokens.tolist() == [5, 6, 7]
    assert all(step.prompt_tokens is None and step.output_tokens is None for step in others)
    for step in (first, *others):
        check_step(step, "here")
    scrambled = Scrambler(b"s" * 32, 100).step(first)
    assert scrambled.prompt_tokens.tolist() != [1, 2]


def test_a_text_with_a_gap_is_not_told():
    made = Transcript("w", "7", np.array([1, 2], np.int32))
    made.goes_on(1, np.array([5], np.int32))
    made.plans.append(Plan(1, 3, 1, 1, 0, [6], None, 0))
    made.goes_on(4, np.array([8], np.int32))
    (step,) = made.logged(1.0)
    assert step.prompt_tokens is None


def test_what_came_behind_a_gap_is_not_guessed():
    made = Transcript("w", "7", np.array([1, 2], np.int32))
    made.goes_on(1, np.array([5], np.int32))
    for position, token in ((4, 8), (5, 9), (6, 3)):
        made.goes_on(position, np.array([token], np.int32))
        made.plans.append(Plan(position, 2 + position, 1, 1, 0, [4], None, None))
    assert made.logged(1.0) == []
