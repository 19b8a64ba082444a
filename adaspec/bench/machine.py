"""What a measurement has to know of its machine: its noise now, and no pauses of its own."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from adaspec.jit import compiled


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
