"""Matches in the texts of a step's requests, by a plain scan.

A match is what `match.Matches` says it is. No index is kept: a text of thousands of tokens is read
in less than a microsecond, on an accelerator, too (`adaspec/kernels/scan.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.answers import copy_tokens, match_answers
from adaspec.draft.match import START, Ints, match_own
from adaspec.jit import compiled

Longs = NDArray[np.int64]

CLOSED = -1
"""How many tokens are known of a slot without a text."""


class Texts(NamedTuple):
    """The texts of a step's rows."""

    slots: Longs
    """(rows,) where each row's text lies."""
    tokens: Ints
    """(slots, ..) with room for a draft behind each text, which look-ups write there."""
    known: Ints
    """(slots,) how many of the tokens are the text's."""
    answers: Ints
    """The words of an `AnswerIndex`, none where no answers are remembered."""
    owners: Ints
    """(slots,) whose answers each text may be continued by."""


@compiled
def closed_row(known: Ints, slots: Longs) -> int:
    """The first row whose slot has no text, or -1."""
    for row in range(len(slots)):
        if not 0 <= slots[row] < len(known) or known[slots[row]] == CLOSED:
            return row
    return -1


@compiled
def append_rows(tokens: Ints, known: Ints, slots: Longs, run: Ints, counts: Ints) -> None:
    """Append counts[i] of the tokens in one row to the text in slots[i], which has room."""
    taken = 0
    for row in range(len(slots)):
        slot, count = slots[row], counts[row]
        tokens[slot, known[slot] : known[slot] + count] = run[taken : taken + count]
        known[slot] += count
        taken += count


@compiled
def match_text(text: Ints, answers: Ints, owner: int, match: Ints) -> None:
    """Fill in the facts about the match of a text, in itself or in earlier answers."""
    match_own(text, match)
    match_answers(text, answers, owner, match)


@compiled
def match_rows(texts: Texts, drafts: Ints, lengths: Ints, facts: Ints, copied: Ints) -> None:
    """Fill each column of `facts` with a row's match behind so many of its drafted tokens.

    There is none behind a token of -1, nor where the length is -1. Each row of `copied` is filled
    with the tokens from where the match starts, -1 behind their end.
    """
    for row in range(len(texts.slots)):
        match, length = facts[:, row], lengths[row]
        if length < 0 or (length > 0 and drafts[row, length - 1] < 0):
            match[:] = 0
            match[START] = -1
            copied[row] = -1
            continue
        text = _text(texts, row, drafts, length)
        match_text(text, texts.answers, texts.owners[texts.slots[row]], match)
        copy_tokens(text, texts.answers, match[START], copied[row])


@compiled
def propose_rows(
    texts: Texts, drafts: Ints, starts: Ints, neural_len: Ints, ngram_len: Ints, tokens: Ints
) -> None:
    """Fill each row with its first drafted tokens, and behind them those from its start on."""
    for row in range(len(texts.slots)):
        neural, ngram = neural_len[row], ngram_len[row]
        tokens[row] = -1
        tokens[row, :neural] = drafts[row, :neural]
        text = _text(texts, row, drafts, neural)
        copy_tokens(text, texts.answers, starts[row], tokens[row, neural : neural + ngram])


@compiled
def _text(texts: Texts, row: int, drafts: Ints, length: int) -> Ints:
    """A row's text, with so many drafted tokens behind it."""
    slot = texts.slots[row]
    known = texts.known[slot]
    text = texts.tokens[slot, : known + length]
    text[known:] = drafts[row, :length]
    return text
