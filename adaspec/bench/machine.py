"""The machine that a benchmark runs on: how noisy it is, and how much memory it has left."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adaspec.jit import compiled


@compiled
def reference_loop(turns: int) -> int:
    """A fixed amount of work, timed beside what is measured to judge noise by."""
    mixed = 1
    for _ in range(turns * 100):
        mixed = (mixed * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
    return mixed


def touch_memory(nbytes: int) -> None:
    """Use and free so much memory.

    A virtual machine gets a page from its host at the first touch, some fifteen times slower than
    later ones: without this, whoever comes first pays for it.
    """
    np.empty(nbytes // 4, np.int32)[::1024] = 1


def free_memory() -> float:
    """Bytes that can still be had; endless where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    for line in lines:
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return float("inf")


def held_memory() -> float:
    """Bytes of memory that this process holds now; NaN where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    for line in lines:
        if line.startswith("VmRSS:"):
            return float(line.split()[1]) * 1024
    return float("nan")
