"""What the host remembers of answers is what the device looks up."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from adaspec.draft.answers import LEAST_BYTES, AnswerIndex  # noqa: E402
from adaspec.vllm.session.memory import TOKENS_A_STEP, AnswerMemory  # noqa: E402


def test_the_device_has_the_words_that_the_host_has_and_a_step_stores_only_so_many():
    rng, memory = np.random.default_rng(0), AnswerMemory(AnswerIndex(1 << 21))
    answers = memory.on_device(3, torch.device("cpu"))
    answers.owners[1] = 1
    for _ in range(12):
        for _ in range(5):
            memory.add(rng.integers(0, 9, rng.integers(2_000, TOKENS_A_STEP // 2)).tolist(), 1)
        steps = 0
        while memory.waits:
            memory.store()
            np.testing.assert_array_equal(answers.words.numpy(), memory.index.words)
            steps += 1
        assert steps > 1
    memory.give_up()
    assert not answers.owners.any()


def test_an_answer_is_remembered_as_far_as_its_tokens_are_known():
    memory = AnswerMemory(AnswerIndex(LEAST_BYTES))
    memory.add([1, 2, 3, 4, 5, 6, -1, 7, 8, 9, 1, 2, 3], 1)
    memory.store()
    assert memory.index.tokens == 6
