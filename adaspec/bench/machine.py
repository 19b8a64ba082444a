"""Measures the noise and the free memory of the machine that a benchmark runs on."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled

MEMORY_SHARE = 0.5
"""The share of the free memory that a benchmark may take."""


@compiled
def _reference_loop(turns: int) -> int:
    mixed = 1
    for _ in range(turns * 100):
        mixed = (mixed * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
    return mixed


def reference_loop_s(turns: int) -> float:
    """The seconds that a fixed amount of work takes now, which show the noise of a measurement.

    The first call also compiles the loop.
    """
    began_s = time.perf_counter()
    _reference_loop(turns)
    return time.perf_counter() - began_s


def memory_read_s() -> float:
    """The seconds that a fixed read of memory takes now, as the median of a few reads.

    Steps of a small batch wait for memory, and other virtual machines on the same host slow it.
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


@compiled
def read_memory(words: NDArray[np.float64]) -> float:
    """Read all of an array; the interpreter is free meanwhile."""
    total = 0.0
    for word in words:
        total += word
    return total


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage inside the block, unless the block itself asks for it."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def reserve_memory(nbytes: int) -> str | None:
    """Use and free that much memory once; returns the reason if there is not enough, else None.

    A virtual machine gets a page from its host at the first touch, which is some fifteen times
    slower than later touches. Without this, the system that is measured first would pay for it.
    """
    free = free_memory()
    if nbytes > MEMORY_SHARE * free:
        return f"needs about {nbytes / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
    np.empty(nbytes // 4, np.int32)[::1024] = 1
    return None


def free_memory() -> float:
    """The bytes of free memory; infinite if the system does not say."""
    nbytes = _kernel_bytes("MemAvailable", Path("/proc/meminfo"))
    return float("inf") if nbytes is None else nbytes


def held_memory() -> float:
    """The bytes of memory that this process holds now; NaN if the system does not say."""
    nbytes = _kernel_bytes("VmRSS", Path("/proc/self/status"))
    return float("nan") if nbytes is None else nbytes


def process_memory(pid: int) -> float:
    """The bytes of memory that a process holds now; 0 if the system does not say."""
    return _kernel_bytes("VmRSS", Path(f"/proc/{pid}/status")) or 0.0


def _kernel_bytes(name: str, file: Path) -> float | None:
    """Read a figure from one of the kernel's files, which count in kB, in bytes."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next(
        (float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None
    )
