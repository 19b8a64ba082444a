"""Matches at every position of recorded requests, by what finds those of running ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from adaspec.draft.answers import IN_ANSWERS, NO_ANSWERS, AnswerIndex
from adaspec.draft.match import FACTS, START, Ints, Matches, earliest_match
from adaspec.draft.scan import match_text
from adaspec.jit import compiled


def match_positions(
    prompt: ArrayLike, output: ArrayLike, answers: AnswerIndex | None = None
) -> Matches:
    """The look-ups at all positions: entry p knows prompt + output[:p], up to len(output) - 1.

    All of them also know these `answers`, of owner 1.
    """
    facts = _matches(prompt, output, np.empty((np.size(output), 0), np.int32), answers)
    return Matches(*facts[:, :, 0])


def vllm_positions(
    prompt: ArrayLike, output: ArrayLike, min_n: int, max_n: int
) -> tuple[Ints, Ints]:
    """(start, length) of `earliest_match` at every position."""
    context, known = _context(prompt, output)
    texts = [context[:end] for end in range(known, len(context))]
    found = [earliest_match(text, min_n, max_n) for text in texts]
    start, length = np.array(found, np.int32).reshape(-1, 2).T.copy()
    return start, length


def matches_behind_drafts(
    prompt: ArrayLike, output: ArrayLike, drafted: ArrayLike, answers: AnswerIndex | None = None
) -> Matches:
    """The look-ups behind drafts; entry [p, K-1] is behind the first K drafted tokens at p.

    `drafted` is [len(output), most drafted], with -1 for no token; there the match has length 0.
    """
    return Matches(*_matches(prompt, output, np.asarray(drafted, np.int32), answers)[:, :, 1:])


def _matches(
    prompt: ArrayLike, output: ArrayLike, drafted: Ints, answers: AnswerIndex | None
) -> Ints:
    """The facts at every position behind the first 0, 1, .. drafted tokens there."""
    context, known = _context(prompt, output)
    positions, width = drafted.shape
    facts = np.zeros((FACTS, positions, width + 1), np.int32)
    facts[START] = -1
    text, drafts = np.append(context, np.zeros(width, np.int32)), np.ascontiguousarray(drafted)
    words = NO_ANSWERS if answers is None else answers.words
    _match_positions(text, known, drafts, words, facts)
    return facts


def _context(prompt: ArrayLike, output: ArrayLike) -> tuple[Ints, int]:
    """Prompt and output in one, and how many tokens the prompt has."""
    prompt_tokens, output_tokens = np.asarray(prompt, np.int32), np.asarray(output, np.int32)
    return np.concatenate([prompt_tokens, output_tokens]), len(prompt_tokens)


@compiled
def _match_positions(text: Ints, prompt: int, drafts: Ints, answers: Ints, facts: Ints) -> None:
    """Fill in the facts at every position; the text has room for a draft behind its end."""
    positions, width = drafts.shape
    for position in range(positions):
        known, matches = prompt + position, facts[:, position]
        match_text(text[:known], answers, 1, matches[:, 0])
        truth = text[known : known + width].copy()
        for at in range(width):
            if drafts[position, at] < 0:
                break
            text[known + at] = drafts[position, at]
            match_text(text[: known + at + 1], answers, 1, matches[:, at + 1])
        text[known : known + width] = truth


@compiled
def copied_run(context: Ints, start: int, position: int) -> int:
    """How many tokens from `position` on equal those from `start` on; these end at `position`."""
    length = 0
    known = min(position - start, len(context) - position)
    while length < known and context[start + length] == context[position + length]:
        length += 1
    return length


@compiled
def accepted_runs(context: Ints, starts: Ints, prompt_tokens: int, answers: Ints) -> Ints:
    """How many tokens from starts[p] on are those from prompt_tokens + p on, per position p.

    It is 0 where starts[p] is -1. Matches in earlier answers are in `answers`, by place.
    """
    runs = np.zeros(len(starts), np.int32)
    for position in range(len(starts)):
        start, at = starts[position], prompt_tokens + position
        place, length = start - IN_ANSWERS, 0
        if place >= 0:
            while at + length < len(context) and answers[place + length] == context[at + length]:
                length += 1
        elif start >= 0:
            length = copied_run(context, start, at)
        runs[position] = length
    return runs
