"""Writes traces: rows go into whole shards, and a folder shows whether it is finished."""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adaspec import staging
from adaspec.arguments import AnyPath, path_of
from adaspec.errors import TraceError
from adaspec.places import Place, look, reason
from adaspec.trace import folder
from adaspec.trace.columns import request_batch, row_schema, step_batch
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import LoggedStep, Request
from adaspec.trace.soundness import check_order, check_request, check_step

_GROUP_BYTES = 2 << 20
"""Size of a row group in memory, all of which a reader must load at once."""
_GROUP_ROWS = 2048


class TraceWriter:
    """Writes one trace folder; if it is killed, only the rows of the open shard are lost.

    A trace is written in place, shard by shard. With `whole`, and whenever an older trace is
    replaced, it is written to a folder beside `path` that takes its place on success; a failure
    leaves nothing behind and the older trace untouched. `append` continues an existing trace of the
    same manifest.

    A repeated or misordered step is refused. To bound the memory of an endless log, only the last
    `remembers` requests are checked for that. Dense traces check all requests.
    """

    def __init__(
        self,
        path: AnyPath,
        manifest: Manifest,
        *,
        force: bool = False,
        append: bool = False,
        whole: bool = False,
        shard_bytes: int = 32 << 20,
        shard_rows: int = 1 << 17,
        remembers: int | None = None,
    ):
        if append and (force or whole):
            raise ValueError("append continues a trace in place: neither force nor whole fit")
        self.path = path_of(path, "the trace", TraceError)
        if not isinstance(manifest, Manifest):
            raise TraceError(f"{path}: its manifest is a {type(manifest).__name__}, no Manifest")
        self.manifest = manifest
        self._shard_bytes, self._shard_rows = shard_bytes, shard_rows
        self._requests: list[Request] = []
        self._steps: list[LoggedStep] = []
        self._group_bytes = 0
        self._groups: list[pa.RecordBatch] = []
        self._groups_bytes = 0
        self._latest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._remembers = remembers
        self._shards = 0
        self._open = True
        if not append:
            staging.put_back(self.path)
            _check_free(self.path, force)
        try:
            self._place = look(self.path)
        except OSError as error:
            raise TraceError(
                f"{self.path}: {reason(error)}: choose another folder for the trace"
            ) from error
        self._final = self._place.final
        replaces = not append and self._place.seen is not None
        if replaces:
            _check_replaceable(self._place)
        self._staged = whole or replaces
        self._created = not (append and self._final.exists())
        self._folder = self._stage() if self._created else self._final
        self._lock()
        try:
            if self._created:
                self._begin()
            else:
                self._continue()
        except BaseException:
            self.abort()
            raise

    def add(self, row: Request | LoggedStep, where: str | None = None) -> None:
        """Check and buffer one row; errors begin with `where` it came from."""
        if not self._open:
            raise TraceError(f"{self.path}: the writer is closed, nothing can be added")
        where = where or f"{self.path}: request {row.id!r} of workload {row.workload!r}"
        key = (row.workload, row.id)
        if isinstance(row, Request) != (self.manifest.kind == "dense"):
            raise TraceError(f"{where}: does not belong into a {self.manifest.kind} trace")
        if isinstance(row, Request):
            check_request(row, self.manifest, where)
            if key in self._latest:
                raise TraceError(
                    f"{where}: id {row.id!r} occurs twice in workload {row.workload!r}: "
                    "rename or remove one"
                )
            self._latest[key] = 0
            self._requests.append(row)
            self._group_bytes += _size(row)
        else:
            check_step(row, where)
            check_order(row, self._latest.get(key, -1), where)
            self._remember(key, row.step)
            self._steps.append(row)
            self._group_bytes += 128
            for text in (row.prompt_tokens, row.output_tokens):
                self._group_bytes += 0 if text is None else text.nbytes
        if self._group_bytes >= _GROUP_BYTES or self._pending >= min(_GROUP_ROWS, self._shard_rows):
            self._end_group()

    def flush(self) -> None:
        """Finish the open shard now, so that all rows so far survive if the process is killed."""
        self._end_group(shard=True)

    def close(self) -> None:
        """Finish the trace. One that was written beside its path appears there now."""
        if not self._open:
            return
        try:
            self.flush()
            folder.write_complete(self._folder, self._shards, self.path)
            if self._staged:
                self._publish()
        except BaseException:
            self.abort()
            raise
        self._release()

    def abort(self) -> None:
        """Stop without finishing. Completed shards stay, unless the trace was to appear whole."""
        if not self._open:
            return
        self._requests, self._steps, self._groups = [], [], []
        if self._created and (self._staged or self._shards == 0):
            shutil.rmtree(self._folder, ignore_errors=True)
        self._release()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _remember(self, key: tuple[str, str], step: int) -> None:
        self._latest[key] = step
        self._latest.move_to_end(key)
        if self._remembers is not None and len(self._latest) > self._remembers:
            self._latest.popitem(last=False)

    @property
    def _pending(self) -> int:
        return len(self._requests) + len(self._steps)

    def _end_group(self, shard: bool = False) -> None:
        if self._requests:
            self._groups.append(request_batch(self._requests, self.manifest))
        elif self._steps:
            self._groups.append(step_batch(self._steps, self.manifest))
        self._requests, self._steps = [], []
        self._groups_bytes, self._group_bytes = self._groups_bytes + self._group_bytes, 0
        rows = sum(group.num_rows for group in self._groups)
        if rows and (shard or self._groups_bytes >= self._shard_bytes or rows >= self._shard_rows):
            self._write_shard()

    def _write_shard(self) -> None:
        name = folder.shard_name(self._shards)
        with (
            folder.new_file(self._folder / name, self.path / name) as file,
            pq.ParquetWriter(
                file,
                row_schema(self.manifest),
                compression="zstd",
                write_page_checksum=True,
            ) as shard,
        ):
            for group in self._groups:
                shard.write_batch(group, row_group_size=group.num_rows)
        self._groups, self._groups_bytes = [], 0
        self._shards += 1

    def _stage(self) -> Path:
        try:
            return staging.stage(self._final, private=True)
        except OSError as error:
            raise folder.cannot_write(self.path, error) from error

    def _begin(self) -> None:
        # The manifest is written before the folder gets its name, so that a trace always has one,
        # even if its writer is killed at once.
        with folder.new_file(self._folder / folder.MANIFEST, self.path) as file:
            file.write(self.manifest.to_json().encode())
        if not self._staged:
            self._publish()
            self._folder = self._final

    def _continue(self) -> None:
        existing = TraceReader(self.path)
        difference = self.manifest.difference(existing.manifest)
        if difference:
            raise TraceError(
                f"{self.path}: cannot be appended to: {difference}: choose another folder"
            )
        if existing.manifest.kind == "dense":
            self._latest.update((key, 0) for key, _ in existing.request_keys())
        else:
            for step in existing.steps():
                self._remember((step.workload, step.id), step.step)
        self._shards = len(existing.shards)
        try:
            (self._final / folder.COMPLETE).unlink(missing_ok=True)
            for file in self._final.iterdir():
                if folder.is_leftover(file.name):
                    file.unlink()
        except OSError as error:
            raise folder.cannot_write(self.path, error) from error

    def _publish(self) -> None:
        staging.publish(self._folder, self._place, TraceError, keeps=self._staged)

    def _lock(self) -> None:
        """Lock the folder until `_release` or the end of this process."""
        try:
            self._lock_file = staging.hold(self._folder)
        except BlockingIOError:
            raise TraceError(
                f"{self.path}: another process is writing to it: wait for its end, or choose "
                "another folder"
            ) from None
        except OSError as error:
            raise folder.cannot_write(self.path, error) from error

    def _release(self) -> None:
        self._open = False
        with suppress(OSError):
            os.close(self._lock_file)


def _check_free(path: Path, force: bool) -> None:
    """Refuse a path that exists and may not be replaced."""
    if not os.path.lexists(path):
        return
    if path.exists() and not path.is_dir():
        raise TraceError(f"{path}: is a file: choose another folder for the trace")
    if path.exists() and not force:
        raise TraceError(f"{path}: exists already: choose another folder, or give --force")


def _check_replaceable(place: Place) -> None:
    """Refuse to replace anything but a trace or an empty folder."""
    path, final = place.path, place.final
    names = staging.held(final)
    foreign = [name for name in names if not folder.is_trace_file(name)]
    if foreign:
        raise TraceError(
            f"{path}: is not replaced, it holds {foreign[0]!r}, which is not part of a trace: "
            "choose another folder"
        )
    if names and not folder.is_trace(final):
        raise TraceError(
            f"{path}: is not replaced, it holds no {folder.MANIFEST} of a trace: choose another "
            "folder, or remove this one yourself"
        )


def _size(request: Request) -> int:
    values = (getattr(request, item.name) for item in fields(request))
    return 64 + sum(value.nbytes for value in values if isinstance(value, np.ndarray))
