"""Writes traces: rows go into whole shards, and a folder shows whether it is finished."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adaspec.errors import TraceError
from adaspec.files import AnyPath, Kind, new_file, new_folder, refusing
from adaspec.trace.reader import (
    COMPLETE,
    MANIFEST,
    TraceReader,
    is_blank,
    is_leftover,
    is_shard,
    row_batch,
    shard_name,
)
from adaspec.trace.schema import ARRAYS, Manifest, Request, as_array, check_request, manifest_for

TRACE = Kind(
    "a trace",
    MANIFEST,
    lambda name: name in (MANIFEST, COMPLETE) or is_shard(name) or is_leftover(name),
    TraceError,
)
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
"""A trace holds the texts of others, so only its owner may read it."""
_SHARD_BYTES = 2 << 20
"""Size of a shard in memory; each flush writes the last one anew."""


class TraceWriter:
    """Writes a trace in place, shard by shard, or goes on with one of the same manifest.

    A kill costs only the rows since the last flush or shard. No request may be added twice.
    """

    def __init__(self, path: AnyPath, manifest: Manifest, *, shard_rows: int = 2048):
        self.path = Path(path)
        self.manifest = manifest
        self._shard_rows = shard_rows
        self._rows: list[Request] = []
        """The rows of the last shard, which more may join."""
        self._bytes = 0
        self._has_unwritten = False
        self._known: set[tuple[str, str]] = set()
        self._shards = 0
        """The number of the last shard."""
        with refusing(self.path, TraceError):
            self.path.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
            self._locked: int | None = os.open(self.path, os.O_RDONLY)
        try:
            self._lock(self._locked)
            self._begin()
        except BaseException:
            self.abort()
            raise

    def add(self, row: Request, where: str | None = None) -> None:
        """Check and buffer one row; errors begin with `where` it came from."""
        where = where or f"{self.path}: request {row.id!r} of workload {row.workload!r}"
        key = (row.workload, row.id)
        check_request(row, self.manifest, where)
        if key in self._known:
            twice = f"id {row.id!r} occurs twice in workload {row.workload!r}"
            raise TraceError(f"{where}: {twice}: rename or remove one")
        self._known.add(key)
        self._rows.append(row)
        self._bytes += row.nbytes
        self._has_unwritten = True
        if self._bytes >= _SHARD_BYTES or len(self._rows) >= self._shard_rows:
            self.flush()
            self._rows, self._bytes = [], 0
            self._shards += 1

    def flush(self) -> None:
        """Write the last shard now, so that all rows so far survive if the process is killed."""
        if self._has_unwritten:
            table = pa.Table.from_batches([row_batch(self._rows, self.manifest)])
            with new_file(self.path / shard_name(self._shards), TraceError, _FILE_MODE) as file:
                pq.write_table(table, file, compression="zstd", write_page_checksum=True)
            self._has_unwritten = False

    def close(self) -> None:
        """Finish the trace."""
        if self._locked is None:
            return
        try:
            self.flush()
            with new_file(self.path / COMPLETE, TraceError, _FILE_MODE) as file:
                file.write(json.dumps({"shards": self._shards + bool(self._rows)}).encode() + b"\n")
        finally:
            self.abort()

    def abort(self) -> None:
        """Stop without finishing: what is on disk stays."""
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _lock(self, folder: int) -> None:
        """Lock the folder until its descriptor is closed or this process ends."""
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TraceError(
                f"{self.path}: another process is writing to it: choose another folder"
            ) from None
        except OSError:
            pass  # Some network file systems have no locks; writing goes on without one.

    def _begin(self) -> None:
        """Write the manifest, or read what is there already."""
        if is_blank(self.path):
            with new_file(self.path / MANIFEST, TraceError, _FILE_MODE) as file:
                file.write(self.manifest.to_json().encode())
        else:
            existing = TraceReader(self.path)
            difference = self.manifest.difference(existing.manifest)
            if difference:
                raise TraceError(
                    f"{self.path}: cannot be appended to: {difference}: choose another folder"
                )
            self._known.update(key for key, _ in existing.request_keys())
            self._shards = len(existing.shards)
        with refusing(self.path, TraceError):
            (self.path / COMPLETE).unlink(missing_ok=True)
            for path in self.path.iterdir():
                if is_leftover(path.name):
                    path.unlink()


@contextmanager
def whole_trace(path: Path, manifest: Manifest, force: bool = False) -> Iterator[TraceWriter]:
    """A writer of a trace that appears as a whole; with `force` it replaces an older one."""
    with (
        new_folder(path, TRACE, force, _FOLDER_MODE) as staged,
        TraceWriter(staged, manifest) as writer,
    ):
        yield writer


def write_trace(
    path: AnyPath,
    requests: Iterable[Request],
    *,
    target: str | None = None,
    drafter: str | None = None,
    manifest: Manifest | None = None,
    force: bool = False,
) -> None:
    """Write a trace of these requests, whole or not at all.

    The caps are the largest neural count and the longest draft among the requests, as longer drafts
    cannot be replayed. A `manifest` can replace caps and names.
    """
    where = Path(path)
    rows = [_of_arrays(each, f"{where}: request {at}") for at, each in enumerate(requests)]
    if not rows:
        raise TraceError(f"{where}: there is no request to write")
    if manifest is None:
        manifest = manifest_for(rows, target, drafter, "write_trace")
    elif target is not None or drafter is not None:
        raise TraceError(f"{where}: a manifest is given, which names target and drafter itself")
    with whole_trace(where, manifest, force) as writer:
        for row in rows:
            writer.add(row, f"{where}: request {row.id!r} of workload {row.workload!r}")


def _of_arrays(request: Request, label: str) -> Request:
    """The request with its lists turned into arrays; anything but requests is refused."""
    if not isinstance(request, Request):
        raise TraceError(f"{label} is a {type(request).__name__}: give adaspec.Request objects")
    changes: dict[str, Any] = {}
    for name, kind in ARRAYS.items():
        value = getattr(request, name)
        if value is not None:
            changes[name] = as_array(value, kind, f"{label}: {name}")
        elif name in ("prompt_tokens", "output_tokens"):
            raise TraceError(f"{label}: {name} is None: give token ids")
    return replace(request, **changes)
