"""What the long run breaks on purpose, each for one wave of requests; and what it serves by."""

import contextlib
import os
import time
from pathlib import Path
from unittest import mock

import numpy as np

from policies import Failing, Wanderer

LIMIT_S = 0.02
FAULTS = (
    "admit",
    "keep",
    "plan",
    "proceed",
    "settle",
    "learn",
    "release",
    "look-up",
    "batch",
    "time",
    "expects",
    "switched off",
)
LOSSES = ("queue", "disk", "limit", "rejected", "incomplete", "closed")
NEEDS_HEAD = ("proceed", "incomplete")


class Sleeping(Wanderer):
    """Takes longer than it may, now and then."""

    def settle(self, batch, drafts):
        if self.draw.random() < 0.1:
            time.sleep(2 * LIMIT_S)
        return super().settle(batch, drafts)


class Boasting(Wanderer):
    """Fails to say what it expects."""

    def expects(self, proposal):
        raise RuntimeError("injected")


def policy_for(fault):
    """The policy that a fault of that name is injected by."""
    if fault == "switched off":
        return Failing("plan", "raises")
    if fault == "settle":
        return Failing("settle", "nan lengths", 5)
    if fault == "plan":
        return Failing("plan", "nan", 5)
    if fault in ("admit", "keep", "proceed", "learn", "release"):
        return Failing(fault, "raises", 2 if fault == "release" else 5)
    return {"time": Sleeping, "expects": Boasting, "incomplete": Stumbling}.get(fault, Wanderer)()


class Stumbling(Failing):
    """Fails while requests are being recorded: their rows have holes then."""

    def __init__(self):
        super().__init__("plan", "raises", 6)


@contextlib.contextmanager
def injected(fault, session, recorder):
    """The fault, as long as the context lasts."""
    with contextlib.ExitStack() as stack:
        put = _INJECTIONS.get(fault)
        if put is not None:
            put(stack, session, recorder)
        yield


def _now_and_then(function, error, every=7):
    calls = [0]

    def failing(*args, **kwargs):
        calls[0] += 1
        if calls[0] % every == 0:
            raise error
        return function(*args, **kwargs)

    return failing


def _look_up(stack, session, recorder):
    failing = _now_and_then(session._new_step, MemoryError("injected"))
    stack.enter_context(mock.patch.object(session, "_new_step", failing))


def _batch(stack, session, recorder):
    from adaspec.vllm import attachment

    failing = _now_and_then(attachment.batch_of, IndexError("injected"))
    stack.enter_context(mock.patch.object(attachment, "batch_of", failing))


def _time(stack, session, recorder):
    stack.enter_context(mock.patch("adaspec.vllm.session.SLOW_S", LIMIT_S))


def _queue(stack, session, recorder):
    recorder._max_queued = 0


def _disk(stack, session, recorder):
    whole = os.fsync

    def full(descriptor):
        if "part-" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(28, "No space left on device")
        return whole(descriptor)

    stack.enter_context(mock.patch.object(os, "fsync", full))


def _rejected(stack, session, recorder):
    failing = _now_and_then(recorder._write, ValueError("injected"), every=2)
    stack.enter_context(mock.patch.object(recorder, "_write", failing))


def _closed(stack, session, recorder):
    whole = recorder._take_left

    def left(requests):
        recorder._logged.close()
        whole(requests)

    stack.enter_context(mock.patch.object(recorder, "_take_left", left))


_INJECTIONS = {
    "look-up": _look_up,
    "batch": _batch,
    "time": _time,
    "queue": _queue,
    "disk": _disk,
    "rejected": _rejected,
    "closed": _closed,
}

STATIC = (
    "none",
    "fixed:ngram:8:2",
    "fixed:ngram-vllm:6:2:5",
    "fixed:neural:3",
    "hybrid:4:16:3",
    "hybrid-splice:4:20:3:2:5",
    "hybrid-agree:3:12:2:2:5",
    "ema",
    "budget:4",
)
NGRAM_STATIC = ("none", "fixed:ngram:8:2", "fixed:ngram-vllm:6:2:5", "hybrid:4:16:0")


def sound_policy(rng, has_head, cap):
    """A policy without a fault: one that takes every way, a learned one, or a rule."""
    way = rng.random()
    if way < 0.4:
        wanderer = Wanderer()
        wanderer.seed = int(rng.integers(1 << 30))
        return wanderer
    if way < 0.7:
        return _learned(rng, has_head, cap)
    return str(rng.choice(STATIC if has_head else NGRAM_STATIC))


def _learned(rng, has_head, cap):
    from random_models import random_policy

    from adaspec.predict.tables import packed

    nothing = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), *[nothing] * 3, (0.5, 0.5, 1.0, 1.0), 1)
    return random_policy(rng, tables, evidence=has_head, cap=cap, neural_cap=8 if has_head else 0)
