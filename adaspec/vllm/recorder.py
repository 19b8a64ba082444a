"""Writes traces of a running engine in its own thread, so that the engine never waits for a disk.

The engine's thread puts the events of a step into a bounded queue; if the queue is full, the step
is dropped and counted. Everything else happens in the recorder's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from adaspec.policy.protocol import Ints
from adaspec.trace.schema import LoggedStep
from adaspec.vllm.events import DraftedStep, Observer, Serving, VerifiedStep, source_of
from adaspec.vllm.options import MAX_VERIFIED
from adaspec.vllm.request_record import LAST, SERVED, UNKNOWN, RequestRecord, is_named, trace_key
from adaspec.vllm.trace_output import TraceOutput

log = logging.getLogger("vllm.adaspec")

MAX_QUEUED = 2048
"""How many steps may wait in the queue."""
_POLL_S = 0.5
_CLOSE_S = 30.0
_MAX_TAIL = 32 * MAX_VERIFIED
"""How many tokens a request's record may be behind and still catch up: enough for one longest
draft, or for many steps that a full queue dropped. A tail is only as long as its step needs."""


class Recorder(Observer):
    """Writes a dense row for every recorded request, and logged rows for the others' steps."""

    def __init__(
        self,
        dense: TraceOutput | None,
        logged: TraceOutput | None,
        serving: Serving,
        lost: Callable[[str, int], None],
    ) -> None:
        """`lost` is called with a reason and the number of rows that are not written."""
        self._dense, self._logged = dense, logged
        self._outputs = [output for output in (dense, logged) if output is not None]
        self._serving, self._lost = serving, lost
        self._max_queued = MAX_QUEUED
        self._queue: SimpleQueue[tuple[Callable[..., None], Any] | None] = SimpleQueue()
        self._positions: dict[str, int] = {}
        """How many output tokens of each followed request were queued; used by the engine's thread
        only."""
        self._queued_step = -1
        """The last step that was queued."""
        self._records: dict[str, RequestRecord] = {}
        self._keys: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name="adaspec-recorder", daemon=True)
        self._thread.start()
        # A `Finalize` runs when a worker process ends; `atexit` handlers may not.
        self._finalizer = Finalize(self, self._close, exitpriority=10)

    def entered(
        self,
        request: str,
        prompt_tokens: Ints,
        recorded: bool,
        max_tokens: int | None,
        greedy: bool,
    ) -> None:
        """Follow a request if there is a trace to write it to."""
        if (self._dense if recorded else self._logged) is None or request.startswith(LAST):
            return
        if self._has_room(1):
            self._positions[request] = 0
            prompt = prompt_tokens.copy()
            self._queue.put((self._take_entered, (request, prompt, recorded, max_tokens, greedy)))

    def proposed(self, event: DraftedStep) -> None:
        """Queue a step with the text that its requests have gained."""
        positions = dict(zip(event.requests, event.position.tolist(), strict=True))
        followed = [name for name in event.requests if name in self._positions]
        if not followed or not self._has_room(len(followed)):
            return
        missing_tokens = max(positions[name] - self._positions[name] for name in followed)
        tail = event.tail(min(max(missing_tokens, 1), _MAX_TAIL))
        self._positions.update((name, positions[name]) for name in followed)
        self._queue.put((self._take_step, (event, tail)))
        self._queued_step = event.number

    def verified(self, event: VerifiedStep) -> None:
        """Queue the verification of a step; without one, tokens that follow tell what was right."""
        is_logged = self._logged is not None and event.step.proposes
        if not is_logged or event.step.number != self._queued_step:
            return
        if self._has_room(int(event.known.sum())):
            self._queue.put((self._take_verified, (event,)))

    def left(self, requests: list[str]) -> None:
        """Queue the writing of rows for requests that will not come back."""
        followed = [name for name in requests if self._positions.pop(name, None) is not None]
        if followed:
            self._queue.put((self._take_left, (followed,)))

    def close(self) -> None:
        """Write everything that is known, and finish the traces."""
        self._finalizer()

    def _close(self) -> None:
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    def _has_room(self, rows: int) -> bool:
        """Whether the queue takes another step; if not, the step's rows are counted as lost."""
        has_room = self._queue.qsize() < self._max_queued
        if not has_room:
            self._lost("queue", rows)
        return has_room

    # Everything below runs in the recorder's thread.

    def _run(self) -> None:
        failures = 0
        checked_s = time.monotonic()
        while True:
            item: Any = ()
            with suppress(Empty):
                item = self._queue.get(timeout=_POLL_S)
            now_s = time.monotonic()
            try:
                if item is None:
                    self._finish()
                    return
                if item:
                    take, values = item
                    take(*values)
                if now_s - checked_s >= _POLL_S:
                    checked_s = now_s
                    for output in self._outputs:
                        output.flush_if_due()
            except Exception as error:
                failures += 1
                self._lost("rejected", 1)
                if failures == 1:
                    log.warning("adaspec: recording failed and goes on: %r", error)

    def _take_entered(
        self, request: str, prompt: Ints, recorded: bool, max_tokens: int | None, greedy: bool
    ) -> None:
        workload, id = trace_key(request)
        first_id, number = id, 1
        while (workload, id) in self._keys:
            number += 1
            id = f"{first_id}~{number}"
        if workload != SERVED:  # the engine's own ids never repeat
            self._keys.add((workload, id))
        self._records[request] = RequestRecord(workload, id, prompt, recorded, max_tokens, greedy)

    def _take_step(self, event: DraftedStep, tail: Ints) -> None:
        for row, name in enumerate(event.requests):
            record = self._records.get(name)
            if record is None:
                continue
            record.extend(int(event.context_tokens[row]) - len(record.prompt), tail[row])
            if event.recorded[row]:
                drafts = event.drafted[row], event.confidences[row]
                record.add_draft(*drafts, self._serving.record_cap)
            elif not event.proposes:
                record.steps.append(self._logged_step(record, event, row, None))

    def _take_verified(self, event: VerifiedStep) -> None:
        step = event.step
        for row, name in enumerate(step.requests):
            record = self._records.get(name)
            if record is not None and event.known[row] and not step.recorded[row]:
                record.steps.append(self._logged_step(record, step, row, event))

    def _logged_step(
        self, record: RequestRecord, event: DraftedStep, row: int, verified: VerifiedStep | None
    ) -> LoggedStep:
        tokens, accepted, step_s = event.chosen[row], UNKNOWN, None
        neural_len, ngram_len = int(event.neural_len[row]), int(event.ngram_len[row])
        if verified is not None:
            # The scheduler may have cut the draft, so only the verified tokens count.
            tokens = tokens[: int(verified.drafted[row])]
            neural_len = int(verified.neural_drafted[row])
            ngram_len = int(verified.drafted[row]) - neural_len
            accepted, step_s = int(verified.accepted[row]), verified.step_s
        context_tokens = int(event.context_tokens[row])
        unverified = None
        if record.greedy and event.holds_neural[row]:
            # The drafter runs for the whole batch, so as far as its most demanding row.
            behind = event.drafted[row, neural_len:]
            unverified = behind[(behind >= 0).cumprod().astype(np.bool_)].astype(np.int32)
        return LoggedStep(
            workload=record.workload,
            id=record.id,
            step=0,
            draft_len=len(tokens),
            accepted=accepted,
            source=source_of(neural_len, ngram_len),
            position=context_tokens - len(record.prompt),
            context_tokens=context_tokens,
            running=len(event.requests),
            neural_len=neural_len,
            ngram_len=ngram_len,
            step_s=step_s,
            drafted_tokens=np.array(tokens, np.int32),
            unverified_tokens=unverified,
        )

    def _take_left(self, requests: list[str]) -> None:
        for name in requests:
            record = self._records.pop(name, None)
            if record is not None:
                self._write(record)

    def _write(self, record: RequestRecord) -> None:
        if record.recorded and self._dense is not None:
            request = record.dense_row(self._serving.record_cap)
            if request is not None:
                self._dense.add(request)
            elif record.position:
                self._lost("incomplete", 1)
        elif self._logged is not None:
            if record.has_gap:  # the request's steps are written, but not its text
                self._lost("incomplete", 1)
            for step in record.logged_rows():
                self._logged.add(step)

    def _finish(self) -> None:
        for name in list(self._records):
            record = self._records.pop(name)
            # A named request can be recorded again, and a partial row would be in the way then.
            if not record.recorded or not is_named(name):
                self._write(record)
        for output in self._outputs:
            output.close()
