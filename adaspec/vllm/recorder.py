"""Writes the trace of a running engine in its own thread, so that the engine waits for no disk.

The engine's thread puts steps, and the requests that have left, into a bounded queue; if the queue
is full, a step is dropped and counted. Everything else happens in the recorder's thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue

from adaspec.vllm.events import DraftedStep, Observer
from adaspec.vllm.request_record import SERVED, RequestRecord, trace_key
from adaspec.vllm.session.requests import RunningRequest
from adaspec.vllm.trace_output import TraceOutput

log = logging.getLogger("vllm.adaspec")

MAX_QUEUED = 2048
"""How many steps may wait in the queue."""
_POLL_S = 0.5
_CLOSE_S = 30.0

Followed = list[tuple[int, RequestRecord]]
"""The recorded requests of a step, by row."""


class Recorder(Observer):
    """Writes a row for every request that is recorded."""

    def __init__(self, output: TraceOutput, lost: Callable[[str, int], None]) -> None:
        """`lost` is called with a reason and the number of rows that are not written."""
        self.output, self._lost = output, lost
        self._max_queued = MAX_QUEUED
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._records: dict[str, RequestRecord] = {}
        """The requests that are recorded; the recorder's thread adds their drafts."""
        self._thread = threading.Thread(target=self._run, name="adaspec-recorder", daemon=True)
        self._thread.start()
        # A `Finalize` runs when a worker process ends; `atexit` handlers may not.
        self._finalizer = Finalize(self, self._close, exitpriority=10)

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
        if self._queue.qsize() < self._max_queued:
            self._queue.put(partial(self._take_step, event, followed))
        else:
            self._lost("queue", len(followed))

    def left(self, requests: Sequence[str]) -> None:
        """Queue the writing of rows for requests that will not come back."""
        for name in requests:
            record = self._records.pop(name, None)
            if record is not None:
                request = record.request
                self._queue.put(
                    partial(self._write, record, request.output.copy(), request.is_whole)
                )

    def close(self) -> None:
        """Write everything that is known, and finish the trace."""
        self._finalizer()

    def _close(self) -> None:
        # A named request can be recorded again, and a partial row would be in the way then.
        self.left([name for name, record in self._records.items() if record.workload == SERVED])
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

    def _take_step(self, event: DraftedStep, followed: Followed) -> None:
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
