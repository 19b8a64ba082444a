"""The n-gram look-up of `draft.index`, on a batch of token buffers.

Shapes are fixed and nothing is read back to the host. Instead of keeping an index, it scans the
text at every step: per row and token of the buffer's width this takes up to 16 bytes, of which 5
are kept for the step: 4 for the token and 1 for how much of the text's end is repeated there. For
256 rows of 32,768 tokens that is 130 MB at its peak.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from adaspec.draft.trie import MAX_MATCH, RING


class Text(NamedTuple):
    """The tokens that every row knows, with room behind them for drafted ones."""

    tokens: Tensor
    """(rows, width) int32; from `length` on they mean nothing."""
    length: Tensor
    """(rows,) int64."""
    repeated: Tensor
    """(rows, width) int8: how many tokens before each place equal the text's last ones."""


class Match(NamedTuple):
    """The match of each row's text, in the words of `draft.index.Matches`; all int64."""

    length: Tensor
    start: Tensor
    agree: Tensor
    seen: Tensor
    available: Tensor
    follower: Tensor
    """The token at `start`, -1 without a match."""


def read_text(buffer: Tensor, lengths: Tensor, slots: Tensor, room: int) -> Text:
    """The first lengths[slot] tokens of each slot's buffer, with room for drafted ones."""
    tokens = pad(buffer.index_select(0, slots), (0, room))
    text = Text(
        tokens, lengths.index_select(0, slots).long(), torch.zeros_like(tokens, dtype=torch.int8)
    )
    last, repeated = tail(text, MAX_MATCH), text.repeated
    # No token is -1 but a drafted one, so nothing equals what precedes the text.
    for step in range(MAX_MATCH):
        repeated = _continued(repeated, tokens, last[:, step : step + 1])
    return text._replace(repeated=repeated)


def append(text: Text, token: Tensor) -> Text:
    """The text with a token more in every row."""
    last = token[:, None].to(text.tokens.dtype)
    tokens = text.tokens.scatter(1, text.length[:, None], last)
    repeated = _continued(text.repeated, tokens, last).clamp(max=MAX_MATCH)
    return Text(tokens, text.length + 1, repeated)


def _continued(repeated: Tensor, tokens: Tensor, last: Tensor) -> Tensor:
    """`Text.repeated` once the text goes on with the tokens `last`, (rows, 1).

    Before a place that follows the same token, one token more is repeated than before that token.
    """
    return pad((repeated[:, :-1] + 1) * (tokens[:, :-1] == last), (1, 0))


def look_up(text: Text) -> Match:
    """The longest match of up to `MAX_MATCH` tokens, and its latest occurrences."""
    width = text.tokens.shape[1]
    places = torch.arange(width, dtype=torch.int32, device=text.tokens.device)
    repeated = text.repeated * (places < text.length[:, None])
    longest = repeated.amax(1, keepdim=True)
    occurs = (repeated == longest) & (longest > 0)
    latest = torch.where(occurs, places, -1).topk(min(RING, width), dim=1).values.long()
    followers = text.tokens.gather(1, latest.clamp(min=0)).long()
    start, first = latest[:, 0], followers[:, 0]
    found = start >= 0
    return Match(
        length=longest[:, 0].long(),
        start=start,
        agree=((followers == first[:, None]) & (latest >= 0)).sum(1),
        seen=(latest >= 0).sum(1),
        available=(text.length - start).where(found, 0),
        follower=first.where(found, -1),
    )


def tail(text: Text, count: int) -> Tensor:
    """(rows, count) the last tokens of each row, flush right, -1 on the left of a shorter text."""
    return tokens_at(
        text, text.length[:, None] + torch.arange(-count, 0, device=text.length.device)
    )


def copies(text: Text, start: Tensor, count: int) -> Tensor:
    """(rows, count) the tokens from `start` on; -1 past the text's end or where `start` is -1."""
    steps = torch.arange(count, device=text.length.device)
    return tokens_at(text, torch.where(start < 0, -count, start)[:, None] + steps)


def tokens_at(text: Text, places: Tensor) -> Tensor:
    """(rows, ..) the tokens at these places of each row, -1 outside of its text."""
    inside = (places >= 0) & (places < text.length[:, None])
    tokens = text.tokens.gather(1, places.clamp(0, text.tokens.shape[1] - 1)).long()
    return tokens.where(inside, -1)
