"""The index run over whole recorded requests: what it would have said at every position.

The compiled functions are the index's own, so offline and serving figures cannot differ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from adaspec.draft import batch
from adaspec.draft.batch import GROUP, Ints
from adaspec.draft.behind import read_behind
from adaspec.draft.buffer import RequestBuffer, Slabs
from adaspec.draft.index import Matches
from adaspec.draft.trie import MAX_MATCH_TOKENS, append, lacks_room
from adaspec.jit import compiled


def match_positions(
    prompt: ArrayLike, output: ArrayLike, max_match: int = MAX_MATCH_TOKENS
) -> Matches:
    """Row p is the look-up with prompt + output[:p] known, for p from 0 to len(output) - 1."""
    request, coming = _indexed(prompt, output, max_match)
    facts = np.empty((batch.FACTS, len(coming)), np.int32)
    request.append(coming, lambda base, run, first: _append_noting(base, run, first, facts))
    return Matches.of_facts(facts)


def vllm_positions(
    prompt: ArrayLike, output: ArrayLike, min_n: int, max_n: int
) -> tuple[Ints, Ints]:
    """(start, length) at every position of the match that vLLM's look-up uses; (-1, 0) if none.

    The longest match of min_n to max_n tokens and its earliest occurrence.
    """
    request, coming = _indexed(prompt, output, MAX_MATCH_TOKENS)
    matches = np.empty((2, len(coming)), np.int32)
    request.append(
        coming, lambda base, run, first: _append_vllm(base, run, first, min_n, max_n, matches)
    )
    return matches[0], matches[1]


def matches_behind_drafts(
    prompt: ArrayLike, output: ArrayLike, drafted: ArrayLike, max_match: int = MAX_MATCH_TOKENS
) -> Matches:
    """Entry [p, K-1] is the look-up behind the first K drafted tokens of position p.

    `drafted` is [len(output), most drafted], -1 where nothing was drafted: length 0 there.
    """
    request, coming = _indexed(prompt, output, max_match)
    drafts = np.ascontiguousarray(drafted, np.int32)
    facts = np.zeros((batch.FACTS, *drafts.shape), np.int32)
    facts[batch.START] = facts[batch.EARLIEST] = -1
    request.append(coming, lambda base, run, first: _append_behind(base, run, first, drafts, facts))
    return Matches.of_facts(facts)


@compiled
def copied_run(context: Ints, start: int, position: int) -> int:
    """How many tokens from `position` on equal those from `start` on that are known there."""
    length = 0
    known = min(position - start, len(context) - position)
    while length < known and context[start + length] == context[position + length]:
        length += 1
    return length


@compiled
def accepted_runs(context: Ints, starts: Ints, prompt_tokens: int) -> Ints:
    """`copied_run` at each position p, from starts[p] (0 where that is -1) at prompt_tokens + p."""
    runs = np.zeros(len(starts), np.int32)
    for position in range(len(starts)):
        if starts[position] >= 0:
            runs[position] = copied_run(context, starts[position], prompt_tokens + position)
    return runs


@compiled
def _append_noting(base: int, tokens: Ints, position: int, facts: Ints) -> int:
    while position < len(tokens) and not lacks_room(base, 1):
        batch.read_facts(base, facts, position)
        append(base, tokens[position])
        position += 1
    return position


@compiled
def _append_vllm(
    base: int, tokens: Ints, position: int, min_n: int, max_n: int, matches: Ints
) -> int:
    while position < len(tokens) and not lacks_room(base, 1):
        start, length = batch.earliest_at_most(base, min_n, max_n)
        matches[0, position], matches[1, position] = start, length
        append(base, tokens[position])
        position += 1
    return position


@compiled
def _append_behind(base: int, tokens: Ints, position: int, drafts: Ints, facts: Ints) -> int:
    width = drafts.shape[1]
    bases, lengths = np.full(width, base), np.arange(1, width + 1)
    while position < len(tokens) and not lacks_room(base, 1):
        drafted = 0
        while drafted < width and drafts[position, drafted] >= 0:
            drafted += 1
        rows = np.full(drafted, position)
        for first in range(0, drafted, GROUP):
            last = min(first + GROUP, drafted)
            read_behind(bases[first:last], drafts, rows, lengths[first:], facts[:, position], first)
        append(base, tokens[position])
        position += 1
    return position


def _indexed(prompt: ArrayLike, output: ArrayLike, max_match: int) -> tuple[RequestBuffer, Ints]:
    """A request with its prompt indexed and room for its output; the output's tokens."""
    known, coming = (np.ascontiguousarray(each, np.int32) for each in (prompt, output))
    request = RequestBuffer(len(known) + len(coming), max_match, Slabs(0))
    request.append(known)
    return request, coming
