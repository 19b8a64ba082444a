"""Writes traces: rows go into whole shards, and a folder shows whether it is finished."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adaspec.errors import TraceError
from adaspec.files import AnyPath, Kind, new_file, new_folder, refusing
from adaspec.trace.columns import row_batch, row_schema
from adaspec.trace.manifest import Manifest, manifest_for
from adaspec.trace.reader import (
    COMPLETE,
    MANIFEST,
    TraceReader,
    is_blank,
    is_leftover,
    is_shard,
    shard_name,
)
from adaspec.trace.schema import ARRAYS, Request, as_array
from adaspec.trace.soundness import check_request

TRACE = Kind(
    "a trace",
    MANIFEST,
    lambda name: name in (MANIFEST, COMPLETE) or is_shard(name) or is_leftover(name),
    TraceError,
)
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
"""A trace holds the texts of others, so only its owner may read it."""
_GROUP_BYTES = 2 << 20
"""Size of a row group in memory, all of which a reader must load at once."""
_GROUP_ROWS = 2048
_SHARD_BYTES = 32 << 20
_REWRITTEN_BYTES = 8 << 20
"""A flushed shard stays open up to this size in memory, and the next flush writes it again: whoever
flushes every few seconds gets few files, and little is written twice."""


class TraceWriter:
    """Writes a trace in place, shard by shard; a kill costs only the rows since the last flush, or
    those of the open shard.

    `append` continues an existing trace of the same manifest. A trace that appears whole or not at
    all, or replaces another, is written by `whole_trace`.

    No request may be added twice.
    """

    def __init__(
        self,
        path: AnyPath,
        manifest: Manifest,
        *,
        append: bool = False,
        shard_rows: int = 1 << 17,
        shown: Path | None = None,
    ):
        """Errors are about the path `shown`, if the trace will be somewhere else in the end."""
        self._folder = Path(path)
        self.path = shown or self._folder
        self.manifest = manifest
        self._shard_rows = shard_rows
        self._rows: list[Request] = []
        self._group_bytes = 0
        self._groups: list[pa.RecordBatch] = []
        """The row groups of the open shard; `_rows` are to be its next one."""
        self._known: set[tuple[str, str]] = set()
        self._shards = 0
        """How many shards are ended, the number of the open one."""
        self._has_unwritten = False
        self._open = True
        blank = self._folder.is_dir() and is_blank(self._folder)
        self._is_new = blank or not (append and self._folder.exists())
        if self._is_new:
            self._begin(blank)
        self._lock = self._locked()
        try:
            if not self._is_new:
                self._continue()
            with refusing(self.path, TraceError):
                for file in self._folder.iterdir():
                    if is_leftover(file.name) and file.is_file():
                        file.unlink()
        except BaseException:
            self._release()
            raise

    def add(self, row: Request, where: str | None = None) -> None:
        """Check and buffer one row; errors begin with `where` it came from."""
        if not self._open:
            raise TraceError(f"{self.path}: the writer is closed, nothing can be added")
        where = where or f"{self.path}: request {row.id!r} of workload {row.workload!r}"
        key = (row.workload, row.id)
        check_request(row, self.manifest, where)
        if key in self._known:
            raise TraceError(
                f"{where}: id {row.id!r} occurs twice in workload {row.workload!r}: "
                "rename or remove one"
            )
        self._known.add(key)
        values = (getattr(row, item.name) for item in fields(row))
        arrays = sum(value.nbytes for value in values if isinstance(value, np.ndarray))
        self._group_bytes += 128 + arrays
        self._rows.append(row)
        self._has_unwritten = True
        if self._group_bytes >= _GROUP_BYTES or len(self._rows) >= min(
            _GROUP_ROWS, self._shard_rows
        ):
            self._end_group()

    def flush(self) -> None:
        """Write the open shard now, so that all rows so far survive if the process is killed."""
        if self._has_unwritten:
            self._write_shard(ends=self._shard_bytes() >= _REWRITTEN_BYTES)

    def close(self) -> None:
        """Finish the trace."""
        if not self._open:
            return
        try:
            self.flush()
            shards = self._shards + bool(self._groups or self._rows)
            with self._new_file(COMPLETE) as file:
                file.write(json.dumps({"shards": shards}).encode() + b"\n")
        except BaseException:
            self.abort()
            raise
        self._release()

    def abort(self) -> None:
        """Stop without finishing. What is on disk stays; a trace without a shard is removed."""
        if not self._open:
            return
        if self._is_new and not (self._folder / shard_name(0)).exists():
            with suppress(OSError):
                (self._folder / MANIFEST).unlink()
                self._folder.rmdir()
        self._release()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _shard_bytes(self) -> int:
        return sum(group.nbytes for group in self._groups)

    def _end_group(self) -> None:
        self._groups.append(row_batch(self._rows, self.manifest))
        self._rows, self._group_bytes = [], 0
        rows = sum(group.num_rows for group in self._groups)
        if self._shard_bytes() >= _SHARD_BYTES or rows >= self._shard_rows:
            self._write_shard(ends=True)

    def _write_shard(self, ends: bool) -> None:
        """Write the open shard in the place of what was flushed of it; it `ends` or stays open."""
        groups = list(self._groups)
        if self._rows:
            groups.append(row_batch(self._rows, self.manifest))
        with (
            self._new_file(shard_name(self._shards)) as file,
            pq.ParquetWriter(
                file,
                row_schema(self.manifest),
                compression="zstd",
                write_page_checksum=True,
            ) as shard,
        ):
            for group in groups:
                shard.write_batch(group, row_group_size=group.num_rows)
        self._has_unwritten = False
        if ends:
            self._rows, self._groups, self._group_bytes = [], [], 0
            self._shards += 1

    def _begin(self, blank: bool) -> None:
        manifest = self.manifest.to_json().encode()
        if blank:
            with self._new_file(MANIFEST) as file:
                file.write(manifest)
        else:
            # A trace has its manifest even if its writer is killed at once.
            with (
                new_folder(self._folder, TRACE, mode=_FOLDER_MODE) as staged,
                new_file(staged / MANIFEST, TraceError, _FILE_MODE) as file,
            ):
                file.write(manifest)

    def _continue(self) -> None:
        existing = TraceReader(self.path)
        difference = self.manifest.difference(existing.manifest)
        if difference:
            raise TraceError(
                f"{self.path}: cannot be appended to: {difference}: choose another folder"
            )
        self._known.update(key for key, _ in existing.request_keys())
        self._shards = len(existing.shards)
        with refusing(self.path, TraceError):
            (self._folder / COMPLETE).unlink(missing_ok=True)

    def _new_file(self, name: str) -> AbstractContextManager[BinaryIO]:
        return new_file(self._folder / name, TraceError, _FILE_MODE, self.path / name)

    def _locked(self) -> int:
        with refusing(self.path, TraceError):
            try:
                return lock(self._folder)
            except BlockingIOError:
                raise TraceError(
                    f"{self.path}: another process is writing to it: wait for its end, or choose "
                    "another folder"
                ) from None

    def _release(self) -> None:
        self._open = False
        with suppress(OSError):
            os.close(self._lock)


def lock(path: Path) -> int:
    """Lock the folder of a trace until the returned descriptor is closed or this process ends.

    Raises `BlockingIOError` if another process has locked it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass  # Some network file systems have no locks; writing goes on without one.
    return descriptor


@contextmanager
def whole_trace(path: Path, manifest: Manifest, force: bool = False) -> Iterator[TraceWriter]:
    """A writer of a trace that appears at `path` when all of it is written, or not at all.

    With `force` it replaces an older trace, and nothing else.
    """
    with (
        new_folder(path, TRACE, force, _FOLDER_MODE) as staged,
        TraceWriter(staged, manifest, shown=path) as writer,
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

    `target` and `drafter` name the models. The caps are the largest neural count and the longest
    draft among the requests, as longer drafts cannot be replayed. A `manifest` can replace both.
    """
    where = Path(path)
    if not isinstance(requests, Iterable):
        raise TraceError(f"{where}: the requests are a {type(requests).__name__}, no list of them")
    rows: Iterable[Request] = (
        _of_arrays(each, f"{where}: request {at}") for at, each in enumerate(requests)
    )
    if manifest is None:
        rows = known = list(rows)
        manifest = manifest_for(known, target, drafter, "write_trace")
    elif target is not None or drafter is not None:
        raise TraceError(f"{where}: a manifest is given, which names target and drafter itself")
    with whole_trace(where, manifest, force) as writer:
        for request in rows:
            writer.add(request)
        if not writer._known:
            raise TraceError(f"{where}: there is no request to write")


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
