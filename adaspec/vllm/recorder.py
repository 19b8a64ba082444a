"""Writes the trace of a running engine in its own thread, so that the engine waits for no disk.

The engine's thread puts steps, and the requests that have left, into a bounded queue; if the queue
is full, a step is dropped and counted. Everything else happens in the recorder's thread.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import numpy as np

from adaspec.policy.protocol import Floats, Ints
from adaspec.trace.schema import CONFIDENCES, Request
from adaspec.vllm.events import DraftedStep
from adaspec.vllm.trace_output import TraceOutput

if TYPE_CHECKING:  # it needs PyTorch, and names of requests do not
    from adaspec.vllm.session.requests import RunningRequest

log = logging.getLogger("vllm.adaspec")

MAX_QUEUED = 2048
"""How many steps may wait in the queue."""
_POLL_S = 0.5
_CLOSE_S = 30.0
_SERVED = "served"
"""The workload of requests that their clients did not name."""
_NAMED = re.compile(r"adaspec:([^:]+):([^:]+):")


def engine_id(workload: str, id: str) -> str:
    """The request id that makes an engine record a request as (workload, id).

    A client sets it, over HTTP in the header X-Request-Id; an engine may put text around it.
    """
    return f"adaspec:{quote(workload, safe='')}:{quote(id, safe='')}:"


def trace_key(request: str) -> tuple[str, str]:
    """The (workload, id) of an engine's request id."""
    match = _NAMED.search(request)
    return (_SERVED, request) if match is None else (unquote(match[1]), unquote(match[2]))


@dataclass(slots=True)
class RequestRecord:
    """One request, by its name in a trace, and its drafts so far."""

    workload: str
    id: str
    request: RunningRequest
    drafts: dict[int, tuple[Ints, Floats]] = field(default_factory=dict)
    """The drafted tokens and confidences by position."""

    def row(self, output: list[int], is_whole: bool, cap: int) -> Request | None:
        """The request's row with this output; None if drafts are missing.

        Where the output is not whole, as the request was aborted, its own length was its limit:
        nobody knows how the model would have gone on. The `accepted` of a position is the length
        of the common prefix of its draft and the tokens that follow.
        """
        length, text = len(output), np.array(output, np.int32)
        limit = self.request.max_tokens if is_whole else length
        prompt = np.array(self.request.prompt, np.int32)
        row = Request(self.workload, self.id, prompt, text, max_tokens=limit)
        if not length or not cap:
            return row if length else None
        drafted = np.full((length, cap), -1, np.int32)
        confidences = np.full((length, cap, len(CONFIDENCES)), np.nan, np.float32)
        for position in range(1, length):
            draft = self.drafts.get(position)
            if draft is None or len(draft[0]) != cap:
                return None
            drafted[position], confidences[position] = draft
        confidences[~np.isfinite(confidences)] = np.nan
        following = np.full(length + cap, -2, np.int32)
        following[:length] = output
        windows = np.lib.stride_tricks.sliding_window_view(following, cap)[:length]
        accepted = (drafted == windows).cumprod(axis=1).sum(axis=1).astype(np.int16)
        accepted[0] = -1
        return replace(
            row, neural_accepted=accepted, drafted_tokens=drafted, confidences=confidences
        )


class Recorder:
    """Writes a row for every request that is recorded."""

    def __init__(self, output: TraceOutput) -> None:
        self.output, self._lost = output, output.lost
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._records: dict[str, RequestRecord] = {}
        """The requests that are recorded; the recorder's thread adds their drafts."""
        self._thread = threading.Thread(target=self._run, name="adaspec-recorder", daemon=True)
        self._thread.start()
        # A `Finalize` runs when a worker process ends; `atexit` handlers may not.
        self.close = Finalize(self, self._close, exitpriority=10)
        """Writes everything that is known, and finishes the trace."""

    def admitted(self, request: RunningRequest) -> None:
        """Follow a request that is recorded."""
        if request.recorded:
            self._records[request.name] = RequestRecord(*trace_key(request.name), request)

    def proposed(self, event: DraftedStep) -> None:
        """Queue a step."""
        records = map(self._records.get, event.requests)
        followed = [(row, record) for row, record in enumerate(records) if record is not None]
        if not followed:
            return
        if self._queue.qsize() < MAX_QUEUED:
            self._queue.put(partial(self._take_step, event, followed))
        else:
            self._lost("queue", len(followed))

    def left(self, requests: Sequence[str]) -> None:
        """Queue the writing of rows for requests that will not come back."""
        for name in requests:
            record = self._records.pop(name, None)
            if record is not None:
                output, is_whole = record.request.output.copy(), record.request.is_whole
                self._queue.put(partial(self._write, record, output, is_whole))

    def _close(self) -> None:
        # A named request can be recorded again, and a partial row would be in the way then.
        self.left([name for name, record in self._records.items() if record.workload == _SERVED])
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    # Everything below runs in the recorder's thread.

    def _run(self) -> None:
        has_failed = False
        while True:
            try:
                with suppress(Empty):
                    take = self._queue.get(timeout=_POLL_S)
                    if take is None:
                        break
                    take()
                self.output.flush_if_due()
            except Exception as error:
                self._lost("rejected", 1)
                if not has_failed:
                    log.warning("adaspec: recording failed and goes on: %r", error)
                has_failed = True
        self.output.close()

    def _take_step(self, event: DraftedStep, followed: list[tuple[int, RequestRecord]]) -> None:
        position = event.drafts.context - event.prompt_tokens
        for row, record in followed:
            if event.recorded[row]:
                draft = event.drafts.drafted[row], event.drafts.confidences[row]
                record.drafts[int(position[row])] = draft

    def _write(self, record: RequestRecord, output: list[int], is_whole: bool) -> None:
        if -1 in output:  # a token that a fault has cost
            output, is_whole = output[: output.index(-1)], False
        request = record.row(output, is_whole, self.output.manifest.neural_cap or 0)
        if request is not None:
            self.output.add(request)
        elif output:
            self._lost("incomplete", 1)
