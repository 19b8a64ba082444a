"""What every long run breaks on purpose: a session's parts, and the writing of traces."""

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
    whole = recorder._write

    def write(*facts):
        recorder.output.close()
        whole(*facts)

    stack.enter_context(mock.patch.object(recorder, "_write", write))


def broken(part, name, every):
    """Let one of a session's parts fail now and then."""

    def put(stack, session, recorder):
        owner = getattr(session, part)
        failing = now_and_then(getattr(owner, name), RuntimeError("injected"), every)
        stack.enter_context(mock.patch.object(owner, name, failing))

    return put


INJECTIONS = {"queue": _queue, "disk": _disk, "rejected": _rejected, "closed": _closed}
