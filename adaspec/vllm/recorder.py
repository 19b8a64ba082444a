"""Writes traces of a running engine in its own thread, so that the engine never waits for a disk.

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

import numpy as np

from adaspec.policy.protocol import Ints
from adaspec.trace.schema import LoggedStep
from adaspec.vllm.events import DraftedStep, Observer, VerifiedStep, source_of
from adaspec.vllm.request_record import SERVED, UNKNOWN, RequestRecord, trace_key
from adaspec.vllm.trace_output import TraceOutput

log = logging.getLogger("vllm.adaspec")

MAX_QUEUED = 2048
"""How many steps may wait in the queue."""
_POLL_S = 0.5
_CLOSE_S = 30.0

Followed = list[tuple[int, RequestRecord]]
"""The followed requests of a step, by row."""


class Recorder(Observer):
    """Writes a dense row for every recorded request, and logged rows for the others' steps."""

    def __init__(
        self,
        dense: TraceOutput | None,
        logged: TraceOutput | None,
        lost: Callable[[str, int], None],
    ) -> None:
        """`lost` is called with a reason and the number of rows that are not written."""
        self._dense, self._logged = dense, logged
        self._lost = lost
        self._max_queued = MAX_QUEUED
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._records: dict[str, RequestRecord] = {}
        """The requests that are followed; the recorder's thread adds drafts and steps to them."""
        self._queued_step = -1
        """The last step that was queued."""
        self._keys: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name="adaspec-recorder", daemon=True)
        self._thread.start()
        # A `Finalize` runs when a worker process ends; `atexit` handlers may not.
        self._finalizer = Finalize(self, self._close, exitpriority=10)

    def admitted(
        self,
        request: str,
        prompt_tokens: Ints,
        recorded: bool,
        max_tokens: int | None,
        greedy: bool,
    ) -> None:
        """Follow a request if there is a trace to write it to."""
        if (self._dense if recorded else self._logged) is None:
            return
        workload, id = trace_key(request)
        if workload != SERVED:  # an engine's own ids never repeat; samples of one prompt share one
            first_id, number = id, 1
            while (workload, id) in self._keys:
                number += 1
                id = f"{first_id}~{number}"
            self._keys.add((workload, id))
        prompt = prompt_tokens.copy()
        record = RequestRecord(workload, id, prompt, recorded, max_tokens, greedy)
        self._records[request] = record

    def proposed(self, event: DraftedStep) -> None:
        """Queue a step."""
        followed = self._followed(event)
        for row, record in followed:
            record.output = event.running[row].output
        if followed and self._has_room(len(followed)):
            self._queue.put(partial(self._take_step, event, followed))
            self._queued_step = event.number

    def verified(self, event: VerifiedStep) -> None:
        """Queue the verification of a step; without one, tokens that follow tell what was right."""
        step = event.step
        if self._logged is None or not step.proposes or step.number != self._queued_step:
            return
        if self._has_room(int(event.known.sum())):
            self._queue.put(partial(self._take_verified, event, self._followed(step)))

    def left(self, requests: Sequence[str]) -> None:
        """Queue the writing of rows for requests that will not come back."""
        for name in requests:
            record = self._records.pop(name, None)
            if record is not None:
                self._queue.put(partial(self._write, record, record.output.copy()))

    def close(self) -> None:
        """Write everything that is known, and finish the traces."""
        self._finalizer()

    def _close(self) -> None:
        # A named request can be recorded again, and a partial row would be in the way then.
        self.left(
            [
                name
                for name, record in self._records.items()
                if not record.recorded or record.workload == SERVED
            ]
        )
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    def _followed(self, event: DraftedStep) -> Followed:
        records = map(self._records.get, event.requests)
        return [(row, record) for row, record in enumerate(records) if record is not None]

    def _has_room(self, rows: int) -> bool:
        """Whether the queue takes another step; if not, the step's rows are counted as lost."""
        has_room = self._queue.qsize() < self._max_queued
        if not has_room:
            self._lost("queue", rows)
        return has_room

    # Everything below runs in the recorder's thread.

    def _run(self) -> None:
        outputs = [output for output in (self._dense, self._logged) if output is not None]
        has_failed = False
        while True:
            try:
                with suppress(Empty):
                    take = self._queue.get(timeout=_POLL_S)
                    if take is None:
                        break
                    take()
                for output in outputs:
                    output.flush_if_due()
            except Exception as error:
                self._lost("rejected", 1)
                if not has_failed:
                    log.warning("adaspec: recording failed and goes on: %r", error)
                has_failed = True
        for output in outputs:
            output.close()

    def _take_step(self, event: DraftedStep, followed: Followed) -> None:
        position = event.position
        for row, record in followed:
            if event.recorded[row]:
                draft = event.drafts.drafted[row], event.drafts.confidences[row]
                record.drafts[int(position[row])] = draft
            elif not event.proposes:
                record.steps.append(self._logged_step(record, event, row, None))

    def _take_verified(self, event: VerifiedStep, followed: Followed) -> None:
        for row, record in followed:
            if event.known[row] and not event.step.recorded[row]:
                record.steps.append(self._logged_step(record, event.step, row, event))

    def _write(self, record: RequestRecord, tokens: list[int]) -> None:
        known = tokens[: tokens.index(-1)] if -1 in tokens else tokens
        output = np.array(known, np.int32)
        if record.recorded and self._dense is not None:
            request = record.dense_row(output, self._dense.manifest.neural_cap or 0)
            if request is not None:
                self._dense.add(request)
            elif len(output):
                self._lost("incomplete", 1)
        elif self._logged is not None:
            for step in record.logged_rows(output):
                self._logged.add(step)

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
            accepted, step_s = int(verified.accepted[row]), event.step_s
        context_tokens = int(event.drafts.context[row])
        unverified = None
        if record.greedy and event.holds_neural[row]:
            # The drafter runs for the whole batch, so as far as its most demanding row.
            behind = event.drafts.drafted[row, neural_len:]
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
