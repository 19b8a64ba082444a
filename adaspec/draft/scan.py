"""Matches in texts that lie in an engine's buffers: by a plain scan, without an index to keep.

A match is what `match.Matches` says it is. This is how an accelerator finds it, too
(`adaspec/kernels/scan.py`): it has no index, and reads a text faster than it could follow one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.answers import copy_tokens, match_answers
from adaspec.draft.match import (
    AGREE,
    AVAILABLE,
    LENGTH,
    LONGEST_MATCH,
    OCCURRENCES,
    SEEN,
    START,
    Ints,
    common_end,
)
from adaspec.jit import compiled

Longs = NDArray[np.int64]


class Texts(NamedTuple):
    """The texts of a step's rows."""

    slots: Longs
    """(rows,) where each row's text lies."""
    tokens: Ints
    """(slots, longest context)."""
    known: Ints
    """(slots,) how many of the tokens are the text's."""
    answers: int
    """The address of an index of earlier answers (see `answers`), 0 where there is none."""
    owners: Ints
    """(slots,) whose answers each text may be continued by."""


@compiled
def match_rows(texts: Texts, drafts: Ints, depth: int, facts: Ints, copied: Ints) -> None:
    """Fill each column of `facts` with a row's match behind so many of its drafted tokens.

    Each row of `copied` is filled with the tokens from where it starts, -1 behind their end.
    """
    for row in range(len(texts.slots)):
        text, owner = _text(texts, row, drafts, depth), texts.owners[texts.slots[row]]
        match = facts[:, row]
        _match_own(text, match)
        match_answers(text, texts.answers, owner, match)
        copy_tokens(text, texts.answers, match[START], copied[row])


@compiled
def propose_rows(
    texts: Texts,
    drafts: Ints,
    depth: int,
    starts: Ints,
    neural_len: Ints,
    ngram_len: Ints,
    tokens: Ints,
) -> None:
    """Fill each row with its first drafted tokens, and behind them those from its start on."""
    for row in range(len(texts.slots)):
        neural, ngram = neural_len[row], ngram_len[row]
        tokens[row] = -1
        tokens[row, :neural] = drafts[row, :neural]
        text = _text(texts, row, drafts, depth)
        copy_tokens(text, texts.answers, starts[row], tokens[row, neural : neural + ngram])


@compiled
def _text(texts: Texts, row: int, drafts: Ints, depth: int) -> Ints:
    """A row's text, with so many drafted tokens behind it."""
    slot = texts.slots[row]
    return np.concatenate((texts.tokens[slot, : texts.known[slot]], drafts[row, :depth]))


@compiled
def _match_own(text: Ints, match: Ints) -> None:
    """Fill in the facts about the latest places where the text's last tokens came before."""
    known, longest, start, agree, seen = len(text), 0, -1, 0, 0
    for place in range(known - 1, 0, -1):
        length = common_end(text, place, text, known, LONGEST_MATCH)
        if length > longest:
            longest, start, agree, seen = length, place, 0, 0
        if length > 0 and length == longest and seen < OCCURRENCES:
            agree += text[place] == text[start]
            seen += 1
    match[LENGTH], match[START], match[AGREE], match[SEEN] = longest, start, agree, seen
    match[AVAILABLE] = known - start if start >= 0 else 0
