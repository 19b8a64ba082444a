"""What every long run breaks on purpose: the writing of traces; and how anything is broken."""

import contextlib
import os
from pathlib import Path
from unittest import mock

LOSSES = ("queue", "disk", "limit", "rejected", "incomplete", "closed")
"""Why rows of a trace are not written; what is not in `INJECTIONS` comes about otherwise."""


@contextlib.contextmanager
def injected(put, *places):
    """A fault, as long as the context lasts: `put` gets a stack of contexts and the places."""
    with contextlib.ExitStack() as stack:
        if put is not None:
            put(stack, *places)
        yield


def now_and_then(function, error, every=7):
    """A function that fails at each so many calls."""
    calls = [0]

    def failing(*args, **kwargs):
        calls[0] += 1
        if calls[0] % every == 0:
            raise error
        return function(*args, **kwargs)

    return failing


def _queue(stack, served, recorder):
    recorder._max_queued = 0


def _disk(stack, served, recorder):
    whole = os.fsync

    def full(descriptor):
        if "part-" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(28, "No space left on device")
        return whole(descriptor)

    stack.enter_context(mock.patch.object(os, "fsync", full))


def _rejected(stack, served, recorder):
    failing = now_and_then(recorder._write, ValueError("injected"), every=2)
    stack.enter_context(mock.patch.object(recorder, "_write", failing))


def _closed(stack, served, recorder):
    whole = recorder._take_left

    def left(requests):
        recorder._logged.close()
        whole(requests)

    stack.enter_context(mock.patch.object(recorder, "_take_left", left))


INJECTIONS = {"queue": _queue, "disk": _disk, "rejected": _rejected, "closed": _closed}
