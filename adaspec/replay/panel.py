"""Policies that share a batch: each request is decided by one that never saw it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.learned import LearnedPolicy
from adaspec.replay.tape import Tape

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Panel:
    """Policies that share a batch, each deciding for the requests that it never saw.

    They are alike in caps and in what they read; the pace, the trust and the guard are common.
    """

    name: str
    policies: tuple[LearnedPolicy, ...]
    member: Ints
    """Which of them decides for each request of the tape."""
    static_tuned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By concurrency, for each of them the static rule tuned on the requests that it saw."""


def alone(policy: LearnedPolicy, tape: Tape) -> Panel:
    """A panel of one."""
    return Panel(policy.name, (policy,), np.zeros(len(tape), np.int32))


@compiled
def speaks_for(member: Ints, request: Longs, rows: int, mind: int, minds: int) -> Ints:
    """The rows of the requests that this mind speaks for."""
    if minds == 1:
        return np.arange(rows).astype(np.int32)
    found = np.empty(rows, np.int32)
    count = 0
    for row in range(rows):
        if member[request[row]] == mind:
            found[count] = row
            count += 1
    return found[:count]
