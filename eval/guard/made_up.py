"""Made-up requests that are hard on a guard: nobody said any of it, and no model drafted it.

unmatched    short matches everywhere, and never what follows; no neural token is accepted
halves       a request begins with what copies well and ends as `unmatched`
turns        the first half of the requests copies well, the other half is `unmatched`
returns      a third copies well, a third is `unmatched`, a third copies well again
long         prompts of 65,536 tokens; what is said is `unmatched`
long_copied  the same prompts, and answers that copy from them
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaspec.trace.schema import Request

Ints = NDArray[np.int32]

CAP = 20
"""Accepted counts are known up to this draft length, as in the public recordings."""
PROMPT, LONG_PROMPT = 512, 65_536
OUTPUT, LONG_OUTPUT = (96, 320), (500, 900)
_FEW = 24
"""With so few tokens, one or two of them have always stood there before."""
_MANY = 20_000
_COPIED = 40
"""The length of what is copied from the prompt at a time."""


def _unmatched(length: int, chance: np.random.Generator) -> tuple[Ints, NDArray[np.int16]]:
    return chance.integers(0, _FEW, length).astype(np.int32), np.zeros(length, np.int16)


def _copied(
    length: int, prompt: Ints, chance: np.random.Generator
) -> tuple[Ints, NDArray[np.int16]]:
    parts: list[Ints] = []
    for _ in range(length // _COPIED + 1):
        at = int(chance.integers(0, len(prompt) - _COPIED))
        parts.append(prompt[at : at + _COPIED])
    accepted = np.minimum(chance.geometric(0.35, length) - 1, CAP).astype(np.int16)
    return np.concatenate(parts)[:length].astype(np.int32), accepted


def _request(
    workload: str, number: int, prompt: Ints, good: int, length: int, chance: np.random.Generator
) -> Request:
    """A request whose first `good` tokens copy well; the others are unmatched."""
    first, took_first = _copied(good, prompt, chance)
    second, took_second = _unmatched(length - good, chance)
    accepted = np.concatenate([took_first, took_second])
    accepted[0] = -1
    return Request(
        workload, str(number), prompt, np.concatenate([first, second]), neural_accepted=accepted
    )


def _shares(workload: str, number: int, count: int) -> float:
    """Which share of a request's output copies well."""
    if workload in ("unmatched", "long"):
        return 0.0
    if workload == "halves":
        return 0.5
    if workload == "turns":
        return float(number < count / 2)
    if workload == "returns":
        return float(not count / 3 <= number < 2 * count / 3)
    return 1.0


WORKLOADS = ("unmatched", "halves", "turns", "returns", "long", "long_copied")
IN_TURN = ("turns", "returns")
"""Workloads whose requests enter in the order in which they were made."""


def made_up(workload: str, count: int, seed: int) -> list[Request]:
    """So many requests of a workload."""
    chance = np.random.default_rng([seed, WORKLOADS.index(workload)])
    is_long = workload.startswith("long")
    shape, lengths = (LONG_PROMPT, LONG_OUTPUT) if is_long else (PROMPT, OUTPUT)
    draw: Callable[[], Ints] = lambda: chance.integers(_FEW, _MANY, shape).astype(np.int32)  # noqa: E731
    requests = []
    for number in range(count):
        length = int(chance.integers(*lengths))
        good = int(length * _shares(workload, number, count))
        requests.append(_request(workload, number, draw(), good, length, chance))
    return requests
