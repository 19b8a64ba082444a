"""Matches at every position of recorded requests, by what finds those of running ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from adaspec.draft.chains import append, new_words, take_back, text_in
from adaspec.draft.index import find_match
from adaspec.draft.match import IN_RING, MATCH_FIELDS, START, Ints, Matches
from adaspec.draft.ring import Ring
from adaspec.jit import compiled


def match_positions(prompt: ArrayLike, output: ArrayLike, ring: Ring | None = None) -> Matches:
    """The look-ups at all positions: entry p knows prompt + output[:p], up to len(output) - 1.

    All of them also search the `ring`, if there is one.
    """
    facts = _matches(prompt, output, np.empty((np.size(output), 0), np.int32), ring)
    return Matches(*facts[:, :, 0])


def splice_matches(
    prompt: ArrayLike, output: ArrayLike, drafted: ArrayLike, ring: Ring | None = None
) -> Matches:
    """The look-ups behind drafts; entry [p, K-1] is behind the first K drafted tokens at p.

    `drafted` is [len(output), most drafted], with -1 for no token; there the match has length 0.
    """
    return Matches(*_matches(prompt, output, np.asarray(drafted, np.int32), ring)[:, :, 1:])


def _matches(prompt: ArrayLike, output: ArrayLike, drafted: Ints, ring: Ring | None) -> Ints:
    """The facts at every position behind the first 0, 1, .. drafted tokens there."""
    context, known = _context(prompt, output)
    positions, width = drafted.shape
    facts = np.zeros((MATCH_FIELDS, positions, width + 1), np.int32)
    facts[START] = -1
    address, room = 0 if ring is None else ring.address, len(context) + width
    drafts = np.ascontiguousarray(drafted)
    _match_positions(new_words(room), room, context, known, drafts, address, facts)
    return facts


def _context(prompt: ArrayLike, output: ArrayLike) -> tuple[Ints, int]:
    """Prompt and output in one, and how many tokens the prompt has."""
    prompt_tokens, output_tokens = np.asarray(prompt, np.int32), np.asarray(output, np.int32)
    return np.concatenate([prompt_tokens, output_tokens]), len(prompt_tokens)


@compiled
def _match_positions(
    words: Ints, room: int, context: Ints, prompt: int, drafts: Ints, ring: int, facts: Ints
) -> None:
    text = text_in(words, room)
    for known in range(len(context)):
        if known >= prompt:
            matches, tail, drafted = facts[:, known - prompt], drafts[known - prompt], 0
            find_match(text, known, ring, matches[:, 0])
            while drafted < len(tail) and tail[drafted] >= 0:
                append(text, known + drafted, tail[drafted])
                drafted += 1
                find_match(text, known + drafted, ring, matches[:, drafted])
            for taken in range(drafted):
                take_back(text, known + drafted - taken)
        append(text, known, context[known])


@compiled
def accepted_runs(context: Ints, starts: Ints, prompt_tokens: int, ring: Ints) -> Ints:
    """How many tokens from starts[p] on are those from prompt_tokens + p on, per position p.

    It is 0 where starts[p] is -1, and a copy of the own text ends where that did at the position.
    `ring` has the ring's tokens by place, with -1 behind each answer.
    """
    runs = np.zeros(len(starts), np.int32)
    for position in range(len(starts)):
        start, at = starts[position], prompt_tokens + position
        said, most = context, len(context) - at
        if start >= IN_RING:
            said, start = ring, start - IN_RING
        else:
            most = min(most, at - start)
        length = 0
        while start >= 0 and length < most and said[start + length] == context[at + length]:
            length += 1
        runs[position] = length
    return runs
