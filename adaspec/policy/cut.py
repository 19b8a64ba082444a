"""What a proposal comes to: checked against what was drafted, and cut to what can be verified."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adaspec.errors import PolicyFault
from adaspec.policy.protocol import Bools, Ints, Proposal
from adaspec.policy.text import whole_numbers


class Cut(NamedTuple):
    """A proposal as it can be verified, per row."""

    neural_len: Ints
    ngram_len: Ints
    start: Ints
    """Where copying starts, in the text and the drafted tokens behind it."""


def checked_lengths(
    proposal: object, holds: Bools, forwards: int, name: str, lenient: bool
) -> tuple[Ints, Ints]:
    """Neural and copied lengths; a `PolicyFault` if a rule is broken.

    `lenient` shortens what was not drafted instead, and what was to be copied behind it goes: for
    where somebody else than the policy `name` ended the drafting.
    """
    rows, drafted = len(holds), forwards * holds
    if not isinstance(proposal, Proposal):
        raise PolicyFault(f"policy '{name}' decides on {proposal!r:.60}, not on a Proposal")
    neural_len = whole_numbers(proposal.neural_len, rows, f"policy '{name}' proposes neural_len")
    ngram_len = whole_numbers(proposal.ngram_len, rows, f"policy '{name}' proposes ngram_len")
    if lenient:
        ngram_len[neural_len > drafted] = 0
        np.minimum(neural_len, drafted, out=neural_len)
    if (neural_len < 0).any() or (neural_len > drafted).any() or (ngram_len < 0).any():
        raise PolicyFault(
            f"policy '{name}' proposes more neural tokens than were drafted ({forwards}), or a "
            f"negative length: neural {neural_len.tolist()}, n-gram {ngram_len.tolist()}"
        )
    return neural_len, ngram_len


def named_starts(
    named: object, context_tokens: Ints, neural_len: Ints, start: Ints, available: Ints, name: str
) -> tuple[Ints, Ints]:
    """Where rows copy from and how much there is, where a policy names places of its own."""
    places = whole_numbers(named, len(start), f"policy '{name}' proposes ngram_start")
    elsewhere = places >= 0
    if (places >= context_tokens).any():
        raise PolicyFault(f"policy '{name}' copies from {places.tolist()}, beyond the known text")
    if (places < -1).any() or (elsewhere & (neural_len > 0)).any():
        raise PolicyFault(
            f"policy '{name}' proposes ngram_start {places.tolist()}: -1 is the most recent match, "
            "and behind neural tokens no other can be named"
        )
    return (
        np.where(elsewhere, places, start),
        np.where(elsewhere, context_tokens - places, available),
    )


def within(cut: Cut, available: Ints, cap: int, room: Ints | None) -> Cut:
    """What there is to copy, within the cap, and within each row's room where rows have one."""
    most = np.full_like(available, cap) if room is None else np.clip(room, 0, cap).astype(np.int32)
    behind = np.minimum(available, np.maximum(most - cut.neural_len, 0))
    return cut._replace(
        neural_len=np.minimum(cut.neural_len, most), ngram_len=np.minimum(cut.ngram_len, behind)
    )


def shorten_longest(cut: Cut, most_tokens: int) -> None:
    """Shorten a batch's drafts, the longest first, until they hold no more tokens together."""
    lengths = cut.neural_len + cut.ngram_len
    if lengths.sum() <= most_tokens:
        return
    level = 0
    while np.minimum(lengths, level + 1).sum() <= most_tokens:
        level += 1
    left = most_tokens - int(np.minimum(lengths, level).sum())
    most = np.full_like(lengths, level)
    most[np.flatnonzero(lengths > level)[:left]] += 1
    np.minimum(cut.neural_len, most, out=cut.neural_len)
    np.minimum(cut.ngram_len, most - cut.neural_len, out=cut.ngram_len)
