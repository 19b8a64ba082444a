"""Earlier answers at random, on the host and on a device."""

from __future__ import annotations

import numpy as np
import torch

from adaspec.device.answers import Answers
from adaspec.draft.answers import BYTES_PER_TOKEN, HEAD, AnswerIndex

CAPACITY = 1_500
"""Tokens, of which random answers fill the room more than once."""


def random_answers(
    rng: np.random.Generator, slots: int, alphabet: int, device: torch.device, count: int = 120
) -> tuple[AnswerIndex, Answers]:
    """So many answers of a few owners, many of which begin alike, as they came one by one."""
    index = AnswerIndex(CAPACITY * BYTES_PER_TOKEN)
    answers = Answers.of(index, slots, device)
    answers.owners.copy_(torch.from_numpy(rng.integers(0, 4, slots).astype(np.int32)))
    given: list[np.ndarray] = []
    for _ in range(count):
        answer = rng.integers(0, alphabet, rng.integers(1, 60)).astype(np.int32)
        if given and rng.random() < 0.5:
            before = given[rng.integers(len(given))]
            answer = np.append(before[: rng.integers(1, 40)], answer[:9])
        given.append(answer)
        add(index, answers, answer, int(rng.integers(1, 4)))
    return index, answers


def add(index: AnswerIndex, answers: Answers, answer: np.ndarray, owner: int) -> None:
    """Store an answer in both."""
    head = int(index.words[HEAD])
    stored = index.add(answer, owner)
    if stored is not None:
        changed = index.changed(head, stored)
        words = torch.from_numpy(index.words[changed]).to(answers.words.device)
        answers.write(torch.from_numpy(changed).to(words.device), words)
