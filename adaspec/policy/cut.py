"""What a proposal comes to: checked against what was drafted, and cut to what can be verified."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adaspec.errors import PolicyFault
from adaspec.jit import compiled
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
) -> tuple[Ints, Ints, bool]:
    """Neural and copied lengths, and whether any row splices; a `PolicyFault` if a rule is broken.

    `lenient` shortens what was not drafted instead: for where somebody else than the policy `name`
    ended the drafting.
    """
    rows = len(holds)
    if not isinstance(proposal, Proposal):
        raise PolicyFault(f"policy '{name}' decides on {proposal!r:.60}, not on a Proposal")
    neural_len = whole_numbers(proposal.neural_len, rows, f"policy '{name}' proposes neural_len")
    ngram_len = whole_numbers(proposal.ngram_len, rows, f"policy '{name}' proposes ngram_len")
    if lenient:
        shorten(neural_len, ngram_len, holds, forwards)
    sound, splices = is_sound(neural_len, ngram_len, holds, forwards)
    if not sound:
        raise PolicyFault(
            f"policy '{name}' proposes more neural tokens than were drafted ({forwards}), or a "
            f"negative length: neural {neural_len.tolist()}, n-gram {ngram_len.tolist()}"
        )
    return neural_len, ngram_len, splices


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


@compiled
def trim(neural_len: Ints, ngram_len: Ints, available: Ints, cap: int, room: Ints) -> None:
    """Shorten to what there is to copy, to the cap, and to each row's room where rows have one."""
    for row in range(ngram_len.shape[0]):
        most = cap
        if room.shape[0] > 0:
            most = min(cap, max(0, room[row]))
        ngram_len[row] = min(ngram_len[row], available[row], max(0, most - neural_len[row]))
        neural_len[row] = min(neural_len[row], most)


@compiled
def shorten(neural_len: Ints, ngram_len: Ints, holds: Bools, forwards: int) -> None:
    """Shorten neural lengths to what was drafted; what was to be copied behind them goes."""
    for row in range(neural_len.shape[0]):
        drafted = forwards if holds[row] else 0
        if neural_len[row] > drafted:
            neural_len[row] = drafted
            ngram_len[row] = 0


@compiled
def is_sound(neural_len: Ints, ngram_len: Ints, holds: Bools, forwards: int) -> tuple[bool, bool]:
    """Whether every row proposes what was drafted for it, no less than nothing; if any splices."""
    splices = False
    for row in range(neural_len.shape[0]):
        if not 0 <= neural_len[row] <= (forwards if holds[row] else 0) or ngram_len[row] < 0:
            return False, splices
        splices |= neural_len[row] > 0 and ngram_len[row] > 0
    return True, splices


def fit(cut: Cut, most_tokens: int) -> None:
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
