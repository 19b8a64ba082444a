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


class MemoryRead:
    """A fixed read of memory, whose time says how fast the machine is just now.

    Steps of a small batch wait for memory, which other machines on the same host wait for too.
    """

    _BYTES = 256 << 20
    _READS = 7

    def __init__(self) -> None:
        self._array = np.ones(self._BYTES // 8)

    def seconds(self) -> float:
        """The median of a few reads."""
        return median(self._read() for _ in range(self._READS))

    def _read(self) -> float:
        began = time.perf_counter()
        self._array.sum()
        return time.perf_counter() - began


def touch_memory(nbytes: int) -> None:
    """Use and free so much memory.

    A virtual machine gets a page from its host at the first touch, some fifteen times slower than
    later ones: without this, whoever comes first pays for it.
    """
    np.empty(nbytes // 4, np.int32)[::1024] = 1


def free_memory() -> float:
    """Bytes that can still be had; endless where the system does not say."""
    found = _bytes_of("MemAvailable", Path("/proc/meminfo"))
    return float("inf") if found is None else found


def held_memory() -> float:
    """Bytes of memory that this process holds now; NaN where the system does not say."""
    found = _bytes_of("VmRSS", Path("/proc/self/status"))
    return float("nan") if found is None else found


def process_memory(pid: int) -> float:
    """Bytes of memory that a process holds now; 0 where the system does not say."""
    return _bytes_of("VmRSS", Path(f"/proc/{pid}/status")) or 0.0


def _bytes_of(name: str, file: Path) -> float | None:
    """A figure of one of the kernel's files, which count in kB."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next(
        (float(each.split()[1]) * 1024 for each in lines if each.startswith(f"{name}:")), None
    )
