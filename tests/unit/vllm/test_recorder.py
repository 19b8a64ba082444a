"""What reaches the recorder's thread, told step by step without an engine."""

from collections import Counter

import numpy as np
import pytest

from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.vllm import recorder as module
from adaspec.vllm.events import DraftedStep, Serving
from adaspec.vllm.options import MAX_VERIFIED
from adaspec.vllm.recorder import Recorder
from adaspec.vllm.trace_output import TraceOutput

TEXT = np.random.default_rng(3).integers(0, 1000, 1 << 14).astype(np.int32)
PROMPT = np.array([1, 2, 3], np.int32)


def proposed(step, position):
    text = TEXT[:position].tolist()
    none, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    return DraftedStep(
        number=step,
        requests=["r"],
        outputs=[text],
        position=np.array([position], np.int32),
        context_tokens=np.array([len(PROMPT) + position], np.int32),
        holds_neural=np.zeros(1, np.bool_),
        recorded=np.zeros(1, np.bool_),
        limited=np.zeros(1, np.bool_),
        room=None,
        forwards=0,
        drafted=np.zeros((1, 0), np.int32),
        confidences=np.zeros((1, 0, 3), np.float32),
        available=one,
        neural_len=none,
        ngram_len=one,
        from_answers=np.zeros(1, np.bool_),
        chosen=[[int(TEXT[position])]],
        proposes=False,
        reasons=lambda rows: (0.0, [{}] * rows),
        decision_s=0.0,
    )


@pytest.fixture
def told(tmp_path):
    """Tells a recorder of one request at these positions; the steps kept, and what was lost."""

    def tell(positions, dropped=()):
        lost = Counter()

        def count(reason, rows):
            lost[reason] += rows

        manifest = Manifest(kind="logged")
        output = TraceOutput(tmp_path / "logged", tmp_path, manifest, 1 << 30, 60.0, count)
        serving = Serving("p", "why", "shadow", None, "t", None)
        made = Recorder(None, output, serving, count)
        made.entered("r", PROMPT, False, 1 << 14, False)
        for step, position in enumerate(positions):
            made._max_queued = 0 if step in dropped else module.MAX_QUEUED
            made.proposed(proposed(step, position))
        made.left(["r"])
        made.close()
        return list(TraceReader(tmp_path / "logged").steps()) if output.rows else [], lost

    return tell


def test_a_fully_accepted_longest_draft_leaves_a_text_whole(told):
    steps, lost = told([1, 2 + MAX_VERIFIED, 3 + MAX_VERIFIED])
    assert steps[0].output_tokens.tolist() == TEXT[: 3 + MAX_VERIFIED].tolist()
    assert [step.accepted for step in steps] == [1, 1]  # the last reaches past the text's end
    assert not lost


def test_a_request_catches_up_on_steps_that_a_full_queue_dropped(told):
    ends = [1 + at * (MAX_VERIFIED + 1) for at in range(22)]
    steps, lost = told(ends, dropped=range(1, 20))
    assert steps[0].output_tokens.tolist() == TEXT[: ends[-1]].tolist()
    assert lost == {"queue": 19}


def test_a_request_that_is_too_far_behind_is_counted_as_incomplete(told):
    assert MAX_VERIFIED < module._MAX_TAIL
    steps, lost = told([1, 3 + module._MAX_TAIL, 4 + module._MAX_TAIL])
    assert steps == []
    assert lost == {"incomplete": 1}
