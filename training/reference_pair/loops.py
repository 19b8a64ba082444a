"""Outputs that got stuck: a small model now and then repeats itself until it is cut off."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 64
LEAST_TIMES = 3
LEAST_TOKENS = 32


def looping_tokens(output: Sequence[int]) -> int:
    """How many tokens at the end of an output repeat what stands a fixed distance before them.

    0 where that is fewer than `LEAST_TOKENS`, or fewer than two rounds behind the first.
    """
    best = 0
    for period in range(1, min(LONGEST_PERIOD, len(output) - 1) + 1):
        at = len(output)
        while at > period and output[at - 1] == output[at - 1 - period]:
            at -= 1
        repeated = len(output) - at
        if repeated >= max(LEAST_TOKENS, (LEAST_TIMES - 1) * period):
            best = max(best, repeated)
    return best
