"""A search through earlier answers that reads all of them, to hold the index against."""

from __future__ import annotations

from collections import Counter

from adaspec.draft.answers import LONGEST_COPY, SIZES
from adaspec.draft.match import LONGEST_MATCH, MOST_OCCURRENCES


def plain_search(
    answers: list[list[int]], text: list[int]
) -> tuple[int, list[int], int, int] | None:
    """(match length, continuation, votes, occurrences), or None."""
    for size in reversed(SIZES):
        if len(text) < size:
            continue
        ends = [
            (answer, end)
            for answer in answers
            for end in range(size, len(answer))
            if answer[end - size : end] == text[-size:]
        ]
        if not ends:
            continue
        alive = ends[: -MOST_OCCURRENCES - 1 : -1]
        occurrences, votes, said = len(alive), 0, 0
        while said < LONGEST_COPY and (votes == 0 or len(alive) > 1):
            following = Counter(a[e + said] for a, e in alive if e + said < len(a))
            if not following:
                break
            chosen = following.most_common(1)[0][0]  # the first that was counted is the latest
            alive = [(a, e) for a, e in alive if e + said < len(a) and a[e + said] == chosen]
            votes = votes or len(alive)
            said += 1
        answer, end = alive[0]
        length = 0
        while length < min(LONGEST_MATCH, end, len(text)) and (
            answer[end - 1 - length] == text[-1 - length]
        ):
            length += 1
        return length, answer[end : end + LONGEST_COPY], votes, occurrences
    return None
