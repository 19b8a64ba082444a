"""Writes trace rows while there is space, then counts them as lost; only `open` ever raises."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import MANIFEST
from adaspec.trace.schema import Request
from adaspec.trace.writer import TraceWriter

log = logging.getLogger("vllm.adaspec")


class TraceOutput:
    """One trace folder of a running engine; of its methods, one is called at a time."""

    def __init__(
        self,
        folder: Path,
        root: Path,
        manifest: Manifest,
        max_bytes: int,
        flush_s: float,
        lost: Callable[[str, int], None],
    ) -> None:
        """Once all traces in `root` together take more than `max_bytes`, no more is written.

        `lost` is called with a reason and the number of rows that are not written.
        """
        self.folder, self.root, self.manifest = folder, root, manifest
        self._max_bytes, self._flush_s, self.lost = max_bytes, flush_s, lost
        self._writer: TraceWriter | None = None
        self._ended: str | None = None
        """The reason why no more rows are written; None while they are."""
        self._pending_rows = 0
        self._flushed_s = time.monotonic()

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
        is_due = time.monotonic() - self._flushed_s >= self._flush_s
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
        if folder_bytes(self.root) > self._max_bytes:
            self._end("limit", f"max_trace_bytes={self._max_bytes} is reached")

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
