"""Writes the trace of a running engine in its own thread, so that the engine waits for no disk.

The engine's thread puts steps, and the requests that have left, into a bounded queue; if the queue
is full, a step is dropped and counted. Everything else happens in the recorder's thread.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np

from adaspec.errors import TraceError
from adaspec.policy.protocol import Floats, Ints
from adaspec.trace.identity import model_name
from adaspec.trace.reader import MANIFEST
from adaspec.trace.schema import CONFIDENCES, Manifest, Request
from adaspec.trace.writer import TraceWriter
from adaspec.vllm.choice import Serving
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.events import DraftedStep
from adaspec.vllm.metrics import FOLDER_VARIABLE, Counters

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
FLUSH_S = 5.0
"""How many seconds of a server's trace a kill may cost."""


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
        self.output = output
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
            self.output.lost("queue", len(followed))

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
                self.output.lost("rejected", 1)
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
            self.output.lost("incomplete", 1)


@dataclass
class TraceOutput:
    """One trace folder of a running engine; of its methods, one is called at a time.

    It takes rows while there is space, then counts them as lost; only `open` ever raises.
    """

    folder: Path
    root: Path
    manifest: Manifest
    max_bytes: int
    """Once all traces in `root` together take more, no more is written."""
    flush_s: float
    lost: Callable[[str, int], None]
    """Called with a reason and the number of rows that are not written."""
    _writer: TraceWriter | None = field(default=None, init=False)
    _ended: str | None = field(default=None, init=False)
    """The reason why no more rows are written; None while they are."""
    _pending_rows: int = field(default=0, init=False)
    _flushed_s: float = field(default_factory=time.monotonic, init=False)

    def add(self, row: Request) -> None:
        """Write a row, or count it as lost."""
        with self._ending_on_error():
            if self._writer is None and self._ended is None:
                self.open()
            if self._writer is not None:
                try:
                    self._writer.add(row)
                    self._pending_rows += 1
                    return
                except TraceError as error:
                    if isinstance(error.__cause__, OSError):
                        raise
                    log.debug("adaspec: a trace row was rejected: %s", error)
        self.lost(self._ended or "rejected", 1)

    def flush_if_due(self) -> None:
        """Put the added rows on disk if the last flush was long enough ago."""
        is_due = time.monotonic() - self._flushed_s >= self.flush_s
        if not is_due or self._writer is None or not self._pending_rows:
            return
        with self._ending_on_error():
            self._writer.flush()
            # A folder that was deleted meanwhile still takes files, which nobody will ever see.
            if not (self.folder / MANIFEST).exists():
                raise TraceError(f"{self.folder}: is gone")
            self._pending_rows, self._flushed_s = 0, time.monotonic()
            self._check_limit()

    def close(self) -> None:
        """Finish the trace."""
        if self._writer is not None:
            with self._ending_on_error():
                self._writer.close()
            self._writer, self._ended = None, self._ended or "closed"

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        try:
            yield
        except (TraceError, OSError) as error:
            self._end("disk", str(error))

    def open(self) -> None:
        """Begin the trace, or go on with it; a `TraceError` where that cannot be."""
        self._writer = TraceWriter(self.folder, self.manifest)
        log.info("adaspec: a trace is written to %s", self.folder)
        self._check_limit()

    def _check_limit(self) -> None:
        if folder_bytes(self.root) > self.max_bytes:
            self._end("limit", f"max_trace_bytes={self.max_bytes} is reached")

    def _end(self, reason: str, message: str) -> None:
        text = "adaspec: recording to %s ends, serving goes on; rows count as dropped (%s): %s"
        log.warning(text, self.folder, reason, " ".join(message.split()))
        writer, self._writer, self._ended = self._writer, None, reason
        if writer is not None:
            if reason == "limit":
                with suppress(TraceError, OSError):
                    writer.close()
            writer.abort()  # nothing to do if it was closed
        if self._pending_rows:
            self.lost(reason, self._pending_rows)
            self._pending_rows = 0


def folder_bytes(folder: Path) -> int:
    """The bytes of all files in a folder and below; files that vanish meanwhile count as 0."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


def observers_of(serving: Serving) -> list[Any]:
    """The observers that the options ask for, meant for the first rank only."""
    folder, options = os.environ.get(FOLDER_VARIABLE), serving.options
    info = {"policy": serving.name, "drafter": options.model, "baseline": options.baseline}
    counters = Counters(Path(folder) if folder else None, info)
    counters.switched(options.mode)
    return [counters, *([recorder_of(serving, counters)] if options.densely_recorded else [])]


def recorder_of(serving: Serving, counters: Counters) -> Recorder:
    """The recorder that writes this session's trace.

    In mode 'record', trace_dir is the trace itself, and an existing trace is continued. In other
    modes, each run makes a new folder in trace_dir.
    """
    options = serving.options
    assert options.trace_dir is not None
    root = Path(options.trace_dir)
    if options.mode == "record":
        folder = root / ("" if options.replica is None else f"replica-{options.replica}")
    else:
        # Engines in different containers may share a folder and have the same process id, so the
        # name has a random part.
        folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"
    output = TraceOutput(
        folder,
        root,
        manifest_of(serving),
        max_bytes=options.max_trace_bytes,
        flush_s=FLUSH_S,
        lost=lambda reason, rows: counters.add(f"dropped_rows/{reason}", rows),
    )
    if options.mode == "record":  # so a folder that cannot be gone on with ends the start
        output.open()
    return Recorder(output)


def manifest_of(serving: Serving) -> Manifest:
    """The manifest of this session's trace."""
    options, target, cap = serving.options, serving.target, serving.record_cap or None
    return Manifest(
        target=model_name(target.name),
        drafter=None if options.model is None else model_name(options.model),
        tokenizer=model_name(target.tokenizer),
        vocabulary_hash=target.vocabulary_hash,
        engine="vllm",
        engine_version=installed_version(),
        hardware=options.hardware,
        neural_cap=cap,
        draft_cap=cap,
        confidences=CONFIDENCES if cap else (),
        source=f"requests recorded in vLLM, mode {options.mode}",
    )
