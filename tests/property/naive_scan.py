"""The index's contract in plain Python: scan the whole context each time."""

from __future__ import annotations

MAX_MATCH = 32


def common_suffix(context: tuple[int, ...], end: int, limit: int) -> int:
    """How many tokens before `end` equal those before the context's own end."""
    length = 0
    newest = len(context) - 1
    while length < min(limit, end) and context[end - 1 - length] == context[newest - length]:
        length += 1
    return length


def look_up(context: tuple[int, ...], max_match: int = MAX_MATCH) -> tuple[int, ...]:
    """(length, start, agree, seen, available) of the context as it stands."""
    lengths = [common_suffix(context, end, max_match) for end in range(len(context))]
    longest = max(lengths, default=0)
    if longest == 0:
        return 0, -1, 0, 0, 0
    ends = [end for end, length in enumerate(lengths) if length >= longest]
    latest = ends[-8:]
    agree = sum(context[end] == context[latest[-1]] for end in latest)
    return longest, ends[-1], agree, len(latest), len(context) - ends[-1]


def vllm_match(context: tuple[int, ...], min_n: int, max_n: int) -> tuple[int, int]:
    """(start, length) of the earliest occurrence of the longest match of min_n to max_n."""
    for length in range(min(max_n, len(context) - 1), min_n - 1, -1):
        suffix = context[len(context) - length :]
        for start in range(len(context) - length):
            if context[start : start + length] == suffix:
                return start + length, length
    return -1, 0


FACTS = ("length", "start", "agree", "seen", "available")
