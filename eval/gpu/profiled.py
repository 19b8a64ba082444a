"""What some steps of an engine are made of: kernels, what the host asks for, and when all is idle.

In torch's profiler: a kernel that a CUDA graph launches is seen like any other.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from engines import has_gpu
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

KERNELS, CALLS, GAPS = 30, 12, 12
"""So many of each are named, those that take longest."""
GAP_US = 5.0
"""The device is idle where it does nothing for so long: two kernels of a graph are closer."""
NAME = 100


class Event(NamedTuple):
    """A kernel, a copy, or a call of CUDA's."""

    name: str
    began_us: float
    ended_us: float

    @property
    def took_us(self) -> float:
        """How long it took."""
        return self.ended_us - self.began_us


def profiled(step: Callable[[], None], count: int) -> dict[str, Any]:
    """Run so many steps; what they were made of, per step."""
    # Torch's own operators are many, and writing them down would slow the host.
    with profile(activities=[ProfilerActivity.CUDA if has_gpu() else ProfilerActivity.CPU]) as kept:
        began_s = time.perf_counter()
        for _ in range(count):
            step()
        wall_us = 1e6 * (time.perf_counter() - began_s)
    host, device = list[Event](), list[Event]()
    for each in kept.profiler.kineto_results.events():
        event = Event(each.name(), each.start_ns() / 1e3, each.end_ns() / 1e3)
        (device if each.device_type() == DeviceType.CUDA else host).append(event)
    return summary(device, host, wall_us, count)


def summary(device: list[Event], host: list[Event], wall_us: float, count: int) -> dict[str, Any]:
    """The same of these events, in microseconds."""
    device = sorted(device, key=lambda each: each.began_us)
    gaps, busy_us, last = list[tuple[float, Event, Event]](), 0.0, None
    for event in device:
        free_us = event.began_us if last is None else max(event.began_us, last.ended_us)
        busy_us += max(0.0, event.ended_us - free_us)
        if last is not None and event.began_us - last.ended_us >= GAP_US:
            gaps.append((event.began_us - last.ended_us, last, event))
        if last is None or event.ended_us > last.ended_us:
            last = event
    gaps.sort(key=lambda gap: -gap[0])
    calls = [each for each in host if each.name.startswith("cu")]
    return {
        "steps": count,
        "wall_us": wall_us / count,
        "busy_us": busy_us / count,
        "gaps": len(gaps) / count,
        "gaps_us": sum(gap for gap, *_ in gaps) / count,
        "longest_gaps": [
            {"us": gap, "behind": before.name[:NAME], "before": after.name[:NAME]}
            for gap, before, after in gaps[:GAPS]
        ],
        "launched": len(device) / count,
        "kernels": _by_name(device, count, KERNELS),
        "calls": _by_name(calls, count, CALLS),
    }


def _by_name(events: list[Event], count: int, most: int) -> list[dict[str, Any]]:
    """Of each name, how often a step has it and how long it takes; the longest come first."""
    times, took_us = Counter[str](), Counter[str]()
    for each in events:
        times[each.name] += 1
        took_us[each.name] += each.took_us  # type: ignore[assignment]
    return [
        {"name": name[:NAME], "times": times[name] / count, "us": us / count}
        for name, us in took_us.most_common(most)
    ]
