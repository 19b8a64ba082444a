"""Where trace rows go: written as long as there is room, then counted; never an exception."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import LoggedStep, Request
from adaspec.trace.writer import TraceWriter

log = logging.getLogger("vllm.adaspec")

_ROW_BYTES = 160
_SHARE = 16
"""What is not on disk yet may be this part of what may still be written."""
_MOST_PENDING = 16 << 20
_AROUND_BYTES = 8192
"""What a shard takes beside its rows, and a trace beside its shards."""
_REMEMBERED = 1 << 16
"""Requests of a logged trace that are held against steps which come again. A request's steps come
together, as it leaves, under an id of its own: to keep them all would only fill the memory."""


class Shelf:
    """One trace folder of a running engine. All methods are called by one thread."""

    def __init__(
        self,
        folder: Path,
        root: Path,
        manifest: Manifest,
        most_bytes: int,
        flush_s: float,
        lost: Callable[[str, int], None],
    ) -> None:
        """All traces in `root` together take at most so many bytes.

        `lost` is told why so many rows are not written: limit, disk or rejected.
        """
        self.folder, self.root, self.manifest = folder, root, manifest
        self.rows = 0
        self._most_bytes, self._flush_s, self._lost = most_bytes, flush_s, lost
        self._writer: TraceWriter | None = None
        self._closed: str | None = None
        self._pending_bytes = self._pending_rows = 0
        self._budget = 0
        self._flushed_s = time.monotonic()

    def add(self, row: Request | LoggedStep) -> None:
        """Write a row, or count it as lost."""
        if self._closed is not None:
            self._lost(self._closed, 1)
            return
        try:
            writer = self._writer or self._open()
            size = _bytes_of(row)
            if self._pending_bytes + size > self._budget:
                self._flush(writer)
            if size > self._budget:
                self._end("limit", f"max_trace_bytes={self._most_bytes} is reached")
                self._lost("limit", 1)
                return
        except (TraceError, OSError) as error:
            self._end("disk", str(error))
            self._lost("disk", 1)
            return
        try:
            writer.add(row)
        except TraceError as error:
            if _of_the_disk(error):
                self._end("disk", str(error))
                self._lost("disk", 1)
            else:
                self._lost("rejected", 1)
                log.debug("adaspec: a trace row was rejected: %s", error)
            return
        self.rows += 1
        self._pending_rows += 1
        self._pending_bytes += size
        if self._pending_bytes > min(_MOST_PENDING, self._budget // _SHARE):
            self.flush()

    def tick(self) -> None:
        """Have what was added on disk by now and then."""
        if time.monotonic() - self._flushed_s >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Have what was added on disk."""
        if self._writer is None or not self._pending_rows:
            return
        try:
            self._flush(self._writer)
        except (TraceError, OSError) as error:
            self._end("disk", str(error))

    def close(self) -> None:
        """Finish the trace."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except (TraceError, OSError) as error:
            self._end("disk", str(error))
        self._writer, self._closed = None, self._closed or "closed"

    def _open(self) -> TraceWriter:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()  # made to see whether it can be
        self._writer = TraceWriter(self.folder, self.manifest, append=True, remembers=_REMEMBERED)
        self._measure()
        log.info("adaspec: a %s trace is written to %s", self.manifest.kind, self.folder)
        return self._writer

    def _flush(self, writer: TraceWriter) -> None:
        writer.flush()
        # A folder that was deleted under us takes files that nobody will find again.
        if not (self.folder / "manifest.json").exists():
            raise TraceError(f"{self.folder}: is gone")
        self._pending_bytes = self._pending_rows = 0
        self._flushed_s = time.monotonic()
        self._measure()

    def _measure(self) -> None:
        """What may still be written, other traces beside this one counted."""
        self._budget = self._most_bytes - folder_bytes(self.root) - _AROUND_BYTES

    def _end(self, why: str, said: str) -> None:
        log.warning(
            "adaspec: recording to %s ends here, serving goes on; rows are counted as dropped "
            "(%s): %s",
            self.folder,
            why,
            " ".join(said.split()),
        )
        self._closed = why
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if why == "limit":
            try:
                writer.close()
                self._pending_rows = 0
            except (TraceError, OSError):
                writer.abort()
        else:
            writer.abort()
        if self._pending_rows:
            self._lost(why, self._pending_rows)
            self.rows -= self._pending_rows
            self._pending_rows = 0


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder and below; what vanishes meanwhile counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
    return total


def _bytes_of(row: Request | LoggedStep) -> int:
    if isinstance(row, LoggedStep):
        return _ROW_BYTES + 4 * row.draft_len
    arrays = (
        row.prompt_tokens,
        row.output_tokens,
        row.neural_accepted,
        row.drafted_tokens,
        row.confidences,
    )
    return _ROW_BYTES + sum(each.nbytes for each in arrays if each is not None)


def _of_the_disk(error: TraceError) -> bool:
    return isinstance(error.__cause__, OSError)
