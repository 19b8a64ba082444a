"""The machine that a benchmark runs on: how noisy it is, and how much memory it has left."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np

from adaspec.jit import compiled


@compiled
def reference_loop(turns: int) -> int:
    """A fixed amount of work, timed beside what is measured to judge noise by."""
    mixed = 1
    for _ in range(turns * 100):
        mixed = (mixed * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
    return mixed


class Pace:
    """How fast the machine is just now: what a fixed read of memory takes.

    Steps of a small batch wait for memory, which other machines on the same host wait for too.
    """

    _BYTES = 256 << 20
    _READS = 7

    def __init__(self) -> None:
        self._field = np.ones(self._BYTES // 8)

    def seconds(self) -> float:
        """The median of a few reads."""
        return median(self._read() for _ in range(self._READS))

    def _read(self) -> float:
        began = time.perf_counter()
        self._field.sum()
        return time.perf_counter() - began


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
