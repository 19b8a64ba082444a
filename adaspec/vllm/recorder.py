"""Writes traces of a running engine, in a thread of its own: the engine never waits for a disk.

The engine's thread puts what happened in a step into a bounded queue; where that is full the step
is dropped and counted. Everything else happens in the recorder's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from adaspec.policy.protocol import Ints
from adaspec.trace.schema import LoggedStep
from adaspec.vllm.events import (
    Observer,
    RequestEntered,
    Serving,
    StepProposed,
    StepVerified,
    source_of,
)
from adaspec.vllm.options import MAX_VERIFIED
from adaspec.vllm.request_record import SERVED, UNKNOWN, RequestRecord, is_named, trace_key
from adaspec.vllm.scrambling import Scrambler
from adaspec.vllm.trace_output import TraceOutput

log = logging.getLogger("vllm.adaspec")

MAX_QUEUED = 2048
"""Steps that may wait for the thread."""
IDLE_S = 10.0
"""An engine that takes no step for so long has no running requests: their rows are written.

vLLM kills its workers at once as it stops, unless it is given a --shutdown-timeout.
"""
DENSE_IDLE_S = 60.0
"""The same for dense rows, which a stalled engine would cut short."""
_POLL_S = 0.5
_CLOSE_S = 30.0
_MAX_TAIL = 32 * MAX_VERIFIED
"""Tokens that a request may be behind and still catch up: one longest draft, or the many steps that
a full queue dropped. A tail is only as long as its step needs."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step with copies of what the policy or the engine may change afterwards."""

    event: StepProposed
    position: Ints
    context_tokens: Ints
    tail: Ints
    chosen: list[list[int]]


class Recorder(Observer):
    """Makes a dense row of every recorded request, and logged rows of all others' steps."""

    def __init__(
        self,
        dense: TraceOutput | None,
        logged: TraceOutput | None,
        serving: Serving,
        lost: Callable[[str, int], None],
        scrambler: Scrambler | None = None,
    ) -> None:
        """`lost` is called with the reason and the number of rows that are not written."""
        self._dense, self._logged = dense, logged
        self._outputs = [output for output in (dense, logged) if output is not None]
        self._serving, self._lost, self._scrambler = serving, lost, scrambler
        self._proposes = serving.mode == "serve"
        self._max_queued = MAX_QUEUED
        self._queue: SimpleQueue[tuple[Callable[..., None], Any] | None] = SimpleQueue()
        self._positions: dict[str, int] = {}
        """Output tokens of each followed request that were queued; only the engine's thread's."""
        self._queued_step = -1
        """The last step that was queued."""
        self._records: dict[str, RequestRecord] = {}
        self._unverified: dict[int, _Step] = {}
        self._keys: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name="adaspec-recorder", daemon=True)
        self._thread.start()
        # Runs when a worker process ends, where `atexit` may not.
        self._finalizer = Finalize(self, self._close, exitpriority=10)

    def entered(self, event: RequestEntered) -> None:
        """Follow a request, if there is a trace for it."""
        if (self._dense if event.recorded else self._logged) is None:
            return
        if self._has_room(1):
            self._positions[event.request] = 0
            prompt = event.prompt_tokens.copy()
            self._queue.put((self._take_entered, (event.request, prompt, event.recorded)))

    def proposed(self, event: StepProposed) -> None:
        """Queue a step."""
        positions = dict(zip(event.requests, event.batch.position.tolist(), strict=True))
        followed = [name for name in event.requests if name in self._positions]
        if not followed or not self._has_room(len(followed)):
            return
        behind = max(positions[name] - self._positions[name] for name in followed)
        tail = event.batch.context.tail(min(max(behind, 1), _MAX_TAIL))
        self._positions.update((name, positions[name]) for name in followed)
        step = _Step(
            event,
            event.batch.position.copy(),
            event.batch.context_tokens.copy(),
            np.array(tail),
            [list(tokens) for tokens in event.chosen],
        )
        self._queue.put((self._take_step, (step,)))
        self._queued_step = event.step

    def verified(self, event: StepVerified) -> None:
        """Queue the verification of a step."""
        if self._logged is None or event.step != self._queued_step:
            return
        if self._has_room(int(event.known.sum())):
            self._queue.put((self._take_verified, (event,)))

    def left(self, requests: list[str]) -> None:
        """Have rows made of requests that will not come back."""
        followed = [name for name in requests if self._positions.pop(name, None) is not None]
        if followed:
            self._queue.put((self._take_left, (followed,)))

    def close(self) -> None:
        """Write what is known and finish the traces."""
        self._finalizer()

    def _close(self) -> None:
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    def _has_room(self, rows: int) -> bool:
        """Whether the queue takes another step; if not, its rows are counted as lost."""
        has_room = self._queue.qsize() < self._max_queued
        if not has_room:
            self._lost("queue", rows)
        return has_room

    # From here on everything runs in the recorder's thread.

    def _run(self) -> None:
        failures = 0
        heard_s = checked_s = time.monotonic()
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
                    heard_s = now_s
                    take, values = item
                    take(*values)
                if now_s - checked_s >= _POLL_S:
                    checked_s = now_s
                    self._check_idle(now_s - heard_s)
            except Exception as error:
                failures += 1
                self._lost("rejected", 1)
                if failures == 1:
                    log.warning("adaspec: recording failed and goes on: %r", error)

    def _check_idle(self, idle_s: float) -> None:
        """Write what can be written after so long without a step."""
        for name, record in list(self._records.items()):
            dense = record.recorded
            # A named request can be recorded again: half of it would only be in the way.
            if idle_s >= (DENSE_IDLE_S if dense else IDLE_S) and not (dense and is_named(name)):
                self._write(self._records.pop(name))
        for output in self._outputs:
            if idle_s >= IDLE_S:
                output.flush()
            else:
                output.flush_if_due()

    def _take_entered(self, request: str, prompt: Ints, recorded: bool) -> None:
        workload, id = trace_key(request)
        first_id, number = id, 1
        while (workload, id) in self._keys:
            number += 1
            id = f"{first_id}~{number}"
        if workload != SERVED:  # ids that the engine gives never repeat
            self._keys.add((workload, id))
        self._records[request] = RequestRecord(workload, id, prompt, recorded)

    def _take_step(self, step: _Step) -> None:
        event = step.event
        for row, name in enumerate(event.requests):
            record = self._records.get(name)
            if record is None:
                continue
            record.extend(int(step.position[row]), step.tail[row])
            if event.recorded[row]:
                drafts = event.drafts
                record.add_draft(
                    drafts.tokens[row], drafts.confidences[row], self._serving.record_cap
                )
            elif not self._proposes:
                record.steps.append(self._logged_step(record, step, row, None))
        if self._proposes and self._logged is not None:
            self._unverified[event.step] = step
            for number in [each for each in self._unverified if each < event.step - 1]:
                del self._unverified[number]

    def _take_verified(self, event: StepVerified) -> None:
        step = self._unverified.pop(event.step, None)
        if step is None:
            return
        for row, name in enumerate(event.requests):
            record = self._records.get(name)
            if record is not None and event.known[row] and not step.event.recorded[row]:
                record.steps.append(self._logged_step(record, step, row, event))

    def _logged_step(
        self, record: RequestRecord, step: _Step, row: int, verified: StepVerified | None
    ) -> LoggedStep:
        tokens, accepted, step_s = step.chosen[row], UNKNOWN, None
        neural_len, ngram_len = int(step.event.neural_len[row]), int(step.event.ngram_len[row])
        if verified is not None:
            # The scheduler may have cut the draft: what was verified is what counts.
            tokens = tokens[: int(verified.drafted[row])]
            neural_len = int(verified.neural_drafted[row])
            ngram_len = int(verified.drafted[row]) - neural_len
            accepted, step_s = int(verified.accepted[row]), verified.step_s
        return LoggedStep(
            workload=record.workload,
            id=record.id,
            step=0,
            draft_len=len(tokens),
            accepted=accepted,
            source=source_of(neural_len, ngram_len),
            position=int(step.position[row]),
            context_tokens=int(step.context_tokens[row]),
            running=len(step.event.requests),
            neural_len=neural_len,
            ngram_len=ngram_len,
            propensity=self._serving.propensity,
            step_s=step_s,
            drafted_tokens=np.array(tokens, np.int32),
        )

    def _take_left(self, requests: list[str]) -> None:
        for name in requests:
            record = self._records.pop(name, None)
            if record is not None:
                self._write(record)

    def _write(self, record: RequestRecord) -> None:
        scrambler = self._scrambler
        if record.recorded and self._dense is not None:
            request = record.dense_row(self._serving.record_cap)
            if request is not None:
                self._dense.add(request if scrambler is None else scrambler.request(request))
            elif record.position:
                self._lost("incomplete", 1)
        elif self._logged is not None:
            if record.has_gap:  # its steps are written, its text is not
                self._lost("incomplete", 1)
            for step in record.logged_rows():
                self._logged.add(step if scrambler is None else scrambler.step(step))

    def _finish(self) -> None:
        for name in list(self._records):
            record = self._records.pop(name)
            if not record.recorded or not is_named(name):
                self._write(record)
        for output in self._outputs:
            output.close()
