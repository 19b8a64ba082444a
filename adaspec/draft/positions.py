"""The index run over whole recorded requests: what it would have said at every position.

The kernels are the index's own, so offline and serving figures cannot differ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaspec.draft import kernels
from adaspec.draft.behind import read_behind
from adaspec.draft.buffer import RequestBuffer
from adaspec.draft.extend import LANES
from adaspec.draft.index import Matches
from adaspec.draft.layout import LONGEST_MATCH, short_of_room
from adaspec.draft.trie import append
from adaspec.jit import compiled

Ints = NDArray[np.int32]


def match_positions(
    prompt: ArrayLike, output: ArrayLike, max_match: int = LONGEST_MATCH
) -> Matches:
    """Row p is the look-up with prompt + output[:p] known, for p from 0 to len(output) - 1."""
    known, coming = _tokens(prompt), _tokens(output)
    facts = np.empty((kernels.FACTS, len(coming)), np.int32)
    request = _indexed(known, len(coming), max_match)
    request.append(coming, lambda base, run, at: kernels.append_positions(base, run, at, facts))
    return Matches.of_facts(facts)


def vllm_positions(
    prompt: ArrayLike, output: ArrayLike, min_n: int, max_n: int
) -> tuple[Ints, Ints]:
    """(start, length) at every position of the match that vLLM's look-up uses; (-1, 0) if none.

    The longest match of min_n to max_n tokens and its earliest occurrence.
    """
    known, coming = _tokens(prompt), _tokens(output)
    found = np.empty((2, len(coming)), np.int32)
    request = _indexed(known, len(coming), LONGEST_MATCH)
    request.append(coming, lambda base, run, at: _append_vllm(base, run, at, min_n, max_n, found))
    return found[0], found[1]


def matches_behind_drafts(
    prompt: ArrayLike, output: ArrayLike, drafted: ArrayLike, max_match: int = LONGEST_MATCH
) -> Matches:
    """Entry [p, K-1] is the look-up behind the first K drafted tokens of position p.

    `drafted` is [len(output), most drafted], -1 where nothing was drafted: length 0 there.
    """
    known, coming = _tokens(prompt), _tokens(output)
    drafts = np.ascontiguousarray(drafted, np.int32)
    facts = np.zeros((kernels.FACTS, *drafts.shape), np.int32)
    facts[kernels.START] = facts[kernels.EARLIEST] = -1
    request = _indexed(known, len(coming), max_match)
    request.append(coming, lambda base, run, at: _append_behind(base, run, at, drafts, facts))
    return Matches.of_facts(facts)


@compiled
def copied_run(context: Ints, start: int, at: int) -> int:
    """How many tokens from `at` on equal those from `start` on, of the at - start known there."""
    length = 0
    most = min(at - start, len(context) - at)
    while length < most and context[start + length] == context[at + length]:
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
def _append_vllm(base: int, tokens: Ints, at: int, min_n: int, max_n: int, found: Ints) -> int:
    while at < len(tokens) and not short_of_room(base, 1):
        found[0, at], found[1, at] = kernels.earliest_at_most(base, min_n, max_n)
        append(base, tokens[at])
        at += 1
    return at


@compiled
def _append_behind(base: int, tokens: Ints, at: int, drafts: Ints, facts: NDArray[np.int32]) -> int:
    most = drafts.shape[1]
    bases, rows = np.full(most, base), np.empty(most, np.int64)
    lengths = np.arange(1, most + 1)
    while at < len(tokens) and not short_of_room(base, 1):
        drafted = 0
        while drafted < most and drafts[at, drafted] >= 0:
            drafted += 1
        rows[:] = at
        for first in range(0, drafted, LANES):
            lanes = min(LANES, drafted - first)
            read_behind(bases, drafts, rows, lengths[first:], facts[:, at], first, lanes)
        append(base, tokens[at])
        at += 1
    return at


def _indexed(prompt: Ints, coming: int, max_match: int) -> RequestBuffer:
    request = RequestBuffer(len(prompt) + coming, max_match)
    request.append(prompt)
    return request


def _tokens(values: ArrayLike) -> Ints:
    return np.ascontiguousarray(values, np.int32)
