"""The index's matches at every position of a recorded request.

The compiled functions are those of the index, so that offline and serving figures cannot differ.
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
    """The look-ups at all positions: entry p knows prompt + output[:p], up to len(output) - 1."""
    request, output_tokens = _indexed(prompt, output, max_match)
    facts = np.empty((batch.FACTS, len(output_tokens)), np.int32)
    request.append(output_tokens, lambda base, run, first: _append_noting(base, run, first, facts))
    return Matches.of_facts(facts)


def vllm_positions(
    prompt: ArrayLike, output: ArrayLike, min_n: int, max_n: int
) -> tuple[Ints, Ints]:
    """(start, length) per position of the match that vLLM's look-up uses; (-1, 0) if none.

    It is the earliest occurrence of the longest match of min_n to max_n tokens.
    """
    request, output_tokens = _indexed(prompt, output, MAX_MATCH_TOKENS)
    matches = np.empty((2, len(output_tokens)), np.int32)
    request.append(
        output_tokens,
        lambda base, run, first: _append_vllm(base, run, first, min_n, max_n, matches),
    )
    return matches[0], matches[1]


def matches_behind_drafts(
    prompt: ArrayLike, output: ArrayLike, drafted: ArrayLike, max_match: int = MAX_MATCH_TOKENS
) -> Matches:
    """The look-ups behind drafts; entry [p, K-1] is behind the first K drafted tokens at p.

    `drafted` is [len(output), most drafted], with -1 for no token; there the match has length 0.
    """
    request, output_tokens = _indexed(prompt, output, max_match)
    drafts = np.ascontiguousarray(drafted, np.int32)
    facts = np.zeros((batch.FACTS, *drafts.shape), np.int32)
    facts[batch.START] = facts[batch.EARLIEST] = -1
    request.append(
        output_tokens, lambda base, run, first: _append_behind(base, run, first, drafts, facts)
    )
    return Matches.of_facts(facts)


@compiled
def copied_run(context: Ints, start: int, position: int) -> int:
    """How many tokens from `position` on equal those from `start` on; these end at `position`."""
    length = 0
    known = min(position - start, len(context) - position)
    while length < known and context[start + length] == context[position + length]:
        length += 1
    return length


@compiled
def accepted_runs(context: Ints, starts: Ints, prompt_tokens: int) -> Ints:
    """`copied_run` from starts[p] at prompt_tokens + p, per position p; 0 if starts[p] is -1."""
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
    """A request with its prompt indexed and room for its output, and the output's tokens."""
    prompt_tokens, output_tokens = (
        np.ascontiguousarray(tokens, np.int32) for tokens in (prompt, output)
    )
    request = RequestBuffer(len(prompt_tokens) + len(output_tokens), max_match, Slabs(0))
    request.append(prompt_tokens)
    return request, output_tokens
