"""Writes traces of a running engine, in a thread of its own: the engine never waits for a disk.

The engine's thread copies what a step said into a bounded queue; where that is full the step is
dropped and counted. Everything else happens behind the queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from adaspec.policy.protocol import Bools, Floats, Ints
from adaspec.vllm.names import SERVED, trace_key
from adaspec.vllm.observer import Came, Entered, Proposed, Silent
from adaspec.vllm.options import MOST_VERIFIED
from adaspec.vllm.scrambling import Scrambler
from adaspec.vllm.shelf import Shelf
from adaspec.vllm.transcript import Plan, Transcript

log = logging.getLogger("vllm.adaspec")

MOST_QUEUED = 2048
"""Steps that may wait for the thread."""
_BREATH_S = 0.5
REST_S = 10.0
"""An engine that takes no step for so long has nobody running: what is known of them is written.

vLLM kills its workers at once as it stops, unless it is given a --shutdown-timeout.
"""
LONG_REST_S = 60.0
"""The same for dense rows, which a stalled engine would cut short."""
_LAST_WORD_S = 30.0
_MOST_TAIL = 32 * MOST_VERIFIED
"""Tokens that a request may be behind and still catch up: one longest draft, or the many steps that
a full queue dropped. It costs nothing but then: a tail is as long as its step needs."""

Lost = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class _Step:
    """What the thread needs of one step: copies, row by row."""

    step: int
    requests: list[str]
    position: Ints
    context_tokens: Ints
    tail: Ints
    recorded: Bools
    tokens: Ints
    confidences: Floats
    neural_len: Ints
    ngram_len: Ints
    meant: list[list[int]]


@dataclass(frozen=True, slots=True)
class _Outcome:
    step: int
    known: Bools
    drafted: Ints
    neural_drafted: Ints
    accepted: Ints
    step_s: float


class Recorder(Silent):
    """Makes a dense row of every recorded request, and logged rows of all others' steps."""

    def __init__(
        self,
        dense: Shelf | None,
        logged: Shelf | None,
        *,
        record_cap: int,
        proposes: bool,
        propensity: float | None,
        lost: Lost,
        scrambler: Scrambler | None = None,
        most_queued: int = MOST_QUEUED,
    ) -> None:
        self._dense, self._logged = dense, logged
        self._record_cap, self._proposes = record_cap, proposes
        self._propensity, self._lost, self._scrambler = propensity, lost, scrambler
        self._most_queued = most_queued
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._seen: dict[str, int] = {}
        """Output tokens of each request that the thread was told of; the engine's thread's."""
        self._queued = -1
        """The last step that the thread was told of."""
        self._transcripts: dict[str, Transcript] = {}
        self._waiting: dict[int, _Step] = {}
        self._keys: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name="adaspec-recorder", daemon=True)
        self._thread.start()
        # Runs as a worker process ends, where `atexit` may not.
        self._finalizer = Finalize(self, self._close, exitpriority=10)

    def entered(self, entered: Entered) -> None:
        """Follow a request, if there is a trace for it."""
        wanted = self._dense if entered.recorded else self._logged
        if wanted is None:
            return
        if self._full():
            self._lost("queue", 1)
            return
        self._seen[entered.request] = 0
        prompt = entered.prompt_tokens.copy()
        self._queue.put(("entered", entered.request, prompt, entered.recorded))

    def proposed(self, proposed: Proposed) -> None:
        """Queue what the step said."""
        followed = [name in self._seen for name in proposed.requests]
        if not any(followed):
            return
        if self._full():
            self._lost("queue", sum(followed))
            return
        batch = proposed.batch
        fresh = batch.position - np.array(
            [self._seen.get(name, at) for name, at in self._of(proposed)], np.int32
        )
        tail = batch.context.tail(int(min(max(fresh.max(), 1), _MOST_TAIL)))
        for name, at in self._of(proposed):
            if name in self._seen:
                self._seen[name] = at
        step = _Step(
            step=proposed.step,
            requests=list(proposed.requests),
            position=batch.position.copy(),
            context_tokens=batch.context_tokens.copy(),
            tail=np.array(tail),
            recorded=proposed.recorded.copy(),
            tokens=np.array(proposed.drafts.tokens),
            confidences=np.array(proposed.drafts.confidences),
            neural_len=proposed.neural_len.copy(),
            ngram_len=proposed.ngram_len.copy(),
            meant=[list(tokens) for tokens in proposed.meant],
        )
        self._queue.put(("step", step))
        self._queued = step.step

    def came(self, came: Came) -> None:
        """Queue what came of a step."""
        if self._logged is None or came.step != self._queued:
            return
        if self._full():
            self._lost("queue", int(came.known.sum()))
            return
        outcome = _Outcome(
            came.step,
            came.known.copy(),
            came.drafted.copy(),
            came.neural_drafted.copy(),
            came.accepted.copy(),
            came.step_s,
        )
        self._queue.put(("came", outcome))

    def left(self, requests: list[str]) -> None:
        """Make rows of requests that will not come back."""
        known = [name for name in requests if self._seen.pop(name, None) is not None]
        if known:
            self._queue.put(("left", known))

    def close(self) -> None:
        """Write what is known and finish the traces."""
        self._finalizer()

    def _close(self) -> None:
        self._queue.put(("end",))
        self._thread.join(_LAST_WORD_S)

    def _full(self) -> bool:
        return self._queue.qsize() >= self._most_queued

    @staticmethod
    def _of(proposed: Proposed) -> list[tuple[str, int]]:
        return list(zip(proposed.requests, proposed.batch.position.tolist(), strict=True))

    # From here on: the thread's.

    def _run(self) -> None:
        complaints = 0
        heard_s = ticked_s = time.monotonic()
        while True:
            try:
                said = self._queue.get(timeout=_BREATH_S)
            except Empty:
                said = None
            now_s = time.monotonic()
            try:
                if said is not None:
                    heard_s = now_s
                    if said[0] == "end":
                        self._finish()
                        return
                    getattr(self, f"_take_{said[0]}")(*said[1:])
                if now_s - ticked_s >= _BREATH_S:
                    ticked_s = now_s
                    self._rest(now_s - heard_s)
            except Exception as error:
                complaints += 1
                self._lost("rejected", 1)
                if complaints == 1:
                    log.warning("adaspec: recording failed and goes on: %r", error)

    def _rest(self, quiet_s: float) -> None:
        """Write what can be written after a silence of so long."""
        for name, transcript in list(self._transcripts.items()):
            dense = transcript.recorded
            if quiet_s >= (LONG_REST_S if dense else REST_S) and not (dense and _is_named(name)):
                self._write(self._transcripts.pop(name))
        for shelf in (self._dense, self._logged):
            if shelf is not None:
                if quiet_s >= REST_S:
                    shelf.flush()
                else:
                    shelf.tick()

    def _take_entered(self, request: str, prompt: Ints, recorded: bool) -> None:
        workload, id = trace_key(request)
        repeated, number = id, 1
        while (workload, id) in self._keys:
            number += 1
            id = f"{repeated}~{number}"
        if workload != SERVED:  # all other ids are the engine's own and come once
            self._keys.add((workload, id))
        self._transcripts[request] = Transcript(workload, id, prompt, recorded)

    def _take_step(self, step: _Step) -> None:
        running = len(step.requests)
        for row, name in enumerate(step.requests):
            transcript = self._transcripts.get(name)
            if transcript is None:
                continue
            transcript.goes_on(int(step.position[row]), step.tail[row])
            if step.recorded[row]:
                transcript.drafted(step.tokens[row], step.confidences[row], self._record_cap)
            elif not self._proposes:
                transcript.plans.append(self._plan(step, row, running, None))
        if self._proposes and self._logged is not None:
            self._waiting[step.step] = step
            for old in [each for each in self._waiting if each < step.step - 1]:
                del self._waiting[old]

    def _take_came(self, came: _Outcome) -> None:
        step = self._waiting.pop(came.step, None)
        if step is None:
            return
        for row, name in enumerate(step.requests):
            transcript = self._transcripts.get(name)
            if transcript is not None and came.known[row] and not step.recorded[row]:
                transcript.plans.append(self._plan(step, row, len(step.requests), came))

    def _plan(self, step: _Step, row: int, running: int, came: _Outcome | None) -> Plan:
        neural_len, ngram_len = int(step.neural_len[row]), int(step.ngram_len[row])
        tokens, accepted, step_s = step.meant[row], None, None
        if came is not None:
            # The scheduler may have cut the draft: what was verified is what counts.
            drafted, neural_len = int(came.drafted[row]), int(came.neural_drafted[row])
            ngram_len, tokens = drafted - neural_len, tokens[:drafted]
            accepted, step_s = int(came.accepted[row]), came.step_s
        return Plan(
            position=int(step.position[row]),
            context_tokens=int(step.context_tokens[row]),
            running=running,
            neural_len=neural_len,
            ngram_len=ngram_len,
            tokens=tokens,
            step_s=step_s,
            accepted=accepted,
        )

    def _take_left(self, requests: list[str]) -> None:
        for name in requests:
            transcript = self._transcripts.pop(name, None)
            if transcript is not None:
                self._write(transcript)

    def _write(self, transcript: Transcript) -> None:
        if transcript.recorded and self._dense is not None:
            request = transcript.dense(self._record_cap)
            if request is None:
                if transcript.position:
                    self._lost("incomplete", 1)
            elif self._scrambler is not None:
                self._dense.add(self._scrambler.request(request))
            else:
                self._dense.add(request)
        elif self._logged is not None:
            if transcript.torn:  # its steps are told, its text is not
                self._lost("incomplete", 1)
            for step in transcript.logged(self._propensity):
                scrambled = step if self._scrambler is None else self._scrambler.step(step)
                self._logged.add(scrambled)

    def _finish(self) -> None:
        for name in list(self._transcripts):
            transcript = self._transcripts.pop(name)
            if not transcript.recorded or not _is_named(name):
                self._write(transcript)
        for shelf in (self._dense, self._logged):
            if shelf is not None:
                shelf.close()


def _is_named(request: str) -> bool:
    """Whether a request can be recorded again, whole: then half of it is worth nothing."""
    return "adaspec:" in request
