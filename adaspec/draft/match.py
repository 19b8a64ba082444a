"""What a match is: its facts, and how far texts are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled

Ints = NDArray[np.int32]

LENGTH, START, AGREE, SEEN, AVAILABLE, FACTS = range(6)
"""The facts about a match, as rows of an array in the order of `Matches`; how many there are."""
LONGEST_MATCH = 32
"""So many tokens before two places are compared."""
OCCURRENCES = 8
"""So many of the latest occurrences count, in the own text or in earlier answers."""
_BLOCK = 64
"""The places that are looked at together: most blocks have none that matters."""


@dataclass(slots=True)
class Matches:
    """The match of each context in question; every array has one entry per slot.

    An occurrence is an earlier end of the context's longest repeated suffix, which it may overlap.
    """

    length: Ints
    """The length in tokens of the longest match of the context's suffix, 0 to `LONGEST_MATCH`."""
    start: Ints
    """The index of the token that follows the most recent occurrence, -1 if none.

    Where the match is in an earlier answer, `IN_ANSWERS` + its place there."""
    agree: Ints
    """How many of the latest 8 occurrences are followed by the same token as the most recent."""
    seen: Ints
    """The number of occurrences that `agree` is about, 0 to 8."""
    available: Ints
    """The number of known tokens from `start` on, 0 if there is no match."""


@compiled
def common_end(tokens: Ints, place: int, text: Ints, known: int, most: int) -> int:
    """How many tokens before a place are the last of a text's `known` tokens, up to `most`."""
    length, most = 0, min(most, place, known)
    while length < most and tokens[place - 1 - length] == text[known - 1 - length]:
        length += 1
    return length


@compiled
def match_own(text: Ints, match: Ints) -> None:
    """Fill in the facts about the latest places where the text's last tokens came before."""
    known, longest, start, agree, seen = len(text), 0, -1, 0, 0
    end = known - 1
    back = 1
    """A place matters only where the token so far back is the same, too."""
    while back <= min(end, LONGEST_MATCH):
        first = max(end - _BLOCK, back - 1)
        last, further = text[known - 1], text[known - back]
        if _has_both(text[first:end], last, text[first + 1 - back : end + 1 - back], further):
            for place in range(end, first, -1):
                if place < back or text[place - back] != text[known - back]:
                    continue
                length = common_end(text, place, text, known, LONGEST_MATCH)
                if length > longest:
                    longest, start, agree, seen = length, place, 0, 0
                if length > 0 and length == longest and seen < OCCURRENCES:
                    agree += text[place] == text[start]
                    seen += 1
                    back = longest + (seen == OCCURRENCES)
        end = first
    match[LENGTH], match[START], match[AGREE], match[SEEN] = longest, start, agree, seen
    match[AVAILABLE] = known - start if start >= 0 else 0


@compiled
def _has_both(near: Ints, last: int, far: Ints, further: int) -> bool:
    """Whether two tokens stand side by side in two pieces of a text; a loop without branches."""
    found = 0
    for at in range(len(near)):
        found += (near[at] == last) & (far[at] == further)
    return found > 0


@compiled
def earliest_match(text: Ints, min_n: int, max_n: int) -> tuple[int, int]:
    """(start, length) of the match that vLLM's own look-up copies from; (-1, 0) if there is none.

    It is the earliest occurrence of the longest match of min_n to max_n tokens. As vLLM does, this
    scans the text.
    """
    known, start, longest = len(text), -1, min_n - 1
    for place in range(min_n, known):
        if text[place - 1 - longest] == text[known - 1 - longest]:
            length = common_end(text, place, text, known, max_n)
            if length > longest:
                start, longest = place, length
                if length == max_n:
                    break
    return (start, longest) if start >= 0 else (-1, 0)
