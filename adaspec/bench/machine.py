"""The machine that a benchmark runs on: how noisy it is, and how much memory it has left."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import BenchError
from adaspec.jit import compiled

MEMORY_SHARE = 0.5
"""How much of the free memory a benchmark takes."""


@compiled
def _reference_loop(turns: int) -> int:
    mixed = 1
    for _ in range(turns * 100):
        mixed = (mixed * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
    return mixed


def reference_loop_s(turns: int) -> float:
    """Seconds that a fixed amount of work takes now; timed beside what is measured, it shows noise.

    The first call compiles it.
    """
    began_s = time.perf_counter()
    _reference_loop(turns)
    return time.perf_counter() - began_s


def memory_read_s() -> float:
    """Seconds that a fixed read of memory takes now: the median of a few.

    Steps of a small batch wait for memory, which other machines on the same host wait for too.
    """
    array = _read_array()
    times = []
    for _ in range(7):
        began_s = time.perf_counter()
        array.sum()
        times.append(time.perf_counter() - began_s)
    return median(times)


@cache
def _read_array() -> NDArray[np.float64]:
    return np.ones((256 << 20) // 8)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """No garbage is collected inside, but for what the block itself asks for."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def check_positive(**values: Sequence[int]) -> None:
    """Refuse an option of a benchmark that is not made of whole numbers from 1 up."""
    for name, numbers in values.items():
        if not numbers or min(numbers) < 1:
            raise BenchError(f"{name}={list(numbers)}: give whole numbers from 1 up")


def reserve_memory(nbytes: int) -> str | None:
    """Why so much memory cannot be had; None where it can, and then it has been used and freed.

    A virtual machine gets a page from its host at the first touch, some fifteen times slower than
    later ones: without this, whoever comes first pays for it.
    """
    free = free_memory()
    if nbytes > MEMORY_SHARE * free:
        return f"needs about {nbytes / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
    np.empty(nbytes // 4, np.int32)[::1024] = 1
    return None


def free_memory() -> float:
    """Bytes that can still be had; endless where the system does not say."""
    free = _kernel_bytes("MemAvailable", Path("/proc/meminfo"))
    return float("inf") if free is None else free


def held_memory() -> float:
    """Bytes of memory that this process holds now; NaN where the system does not say."""
    held = _kernel_bytes("VmRSS", Path("/proc/self/status"))
    return float("nan") if held is None else held


def process_memory(pid: int) -> float:
    """Bytes of memory that a process holds now; 0 where the system does not say."""
    return _kernel_bytes("VmRSS", Path(f"/proc/{pid}/status")) or 0.0


def _kernel_bytes(name: str, file: Path) -> float | None:
    """A figure of one of the kernel's files, which count in kB."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next(
        (float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None
    )
