"""Matches at every position of recorded requests, by what finds those of running ones."""

from __future__ import annotations

import numpy as np

from adaspec.draft.chains import append, new_words, take_back, text_at
from adaspec.draft.index import find_match
from adaspec.draft.match import IN_RING, MATCH_FIELDS, START, Ints
from adaspec.draft.ring import Ring
from adaspec.jit import compiled


def look_ups(
    text: Ints, prompt_tokens: int, drafted: Ints | None = None, ring: Ring | None = None
) -> Ints:
    """The facts of `Matches` at all positions of an output: (facts, positions, 1 + most drafted).

    Entry [:, p, K] knows the text up to position p, and the first K tokens that were drafted there.
    `drafted` is (positions, most drafted), with -1 for no token; there the match has length 0. All
    look-ups also search the `ring`, if there is one.
    """
    positions = len(text) - prompt_tokens
    drafts = np.empty((positions, 0), np.int32) if drafted is None else drafted
    facts = np.zeros((MATCH_FIELDS, positions, 1 + drafts.shape[1]), np.int32)
    facts[START] = -1
    address, room = 0 if ring is None else ring.address, len(text) + drafts.shape[1]
    words, drafts = new_words(room), np.ascontiguousarray(drafts, np.int32)
    _look_up_all(words.ctypes.data, room, text, prompt_tokens, drafts, address, facts)
    return facts


@compiled
def _look_up_all(
    words: int, room: int, context: Ints, prompt: int, drafts: Ints, ring: int, facts: Ints
) -> None:
    text = text_at(words, room)
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
