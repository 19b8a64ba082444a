"""Reads traces: one folder as a stream of sound rows, or several folders as one set of requests.

In Parquet, what is not known is null and drafts are ragged; requests have -1 or NaN and tables.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adaspec.errors import TraceError
from adaspec.files import UNFINISHED, AnyPath
from adaspec.records import read_json
from adaspec.trace.schema import CONFIDENCES, Manifest, Request, check_request


def _list_of(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item))


_TOKENS, _COUNTS = _list_of(pa.int32()), _list_of(pa.int16())

_REQUIRED = ("workload", "id", "prompt_tokens", "output_tokens")
LATER_COLUMN = "max_tokens"
"""The column that the first traces lack; in a shard without it no request has a limit."""


def row_schema(manifest: Manifest) -> pa.Schema:
    """The columns of a trace with this manifest; neural ones only if a neural drafter ran."""
    types = dict(zip(_REQUIRED, (pa.string(), pa.string(), _TOKENS, _TOKENS), strict=True))
    types |= {"ngram_accepted": _COUNTS, "max_tokens": pa.int32()}
    if manifest.neural_cap is not None:
        types["neural_accepted"] = _COUNTS
    if manifest.draft_cap is not None:
        types["drafted_tokens"] = _list_of(_TOKENS)
    types |= dict.fromkeys(manifest.confidences, _list_of(_list_of(pa.float32())))
    return pa.schema(
        [pa.field(name, each, nullable=name not in _REQUIRED) for name, each in types.items()]
    )


def row_batch(rows: Sequence[Request], manifest: Manifest) -> pa.RecordBatch:
    """Sound requests as one record batch with the columns of `row_schema(manifest)`."""
    schema = row_schema(manifest)
    columns = [
        pa.array([_stored(row, each.name) for row in rows], type=each.type) for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _stored(row: Request, name: str) -> Any:
    """A row's entry of a column, as Arrow takes it."""
    if name not in CONFIDENCES:
        value = getattr(row, name)
    elif row.confidences is not None:
        value = row.confidences[..., CONFIDENCES.index(name)]
    else:
        value = None
    if value is None or name in _REQUIRED or name == LATER_COLUMN:
        return value
    entries = list(value)
    if row.drafted_tokens is not None and value.ndim > 1:
        lengths = (row.drafted_tokens >= 0).sum(axis=1)
        entries = [draft[:length] for draft, length in zip(value, lengths, strict=True)]
    entries[:1] = [None] * len(entries[:1])
    return entries


def batch_rows(batch: pa.RecordBatch, manifest: Manifest, where: str) -> list[Request]:
    """The requests in `batch`, each with its own arrays; their soundness is not checked here."""
    for name in _REQUIRED:
        if batch.column(name).null_count:
            raise TraceError(f"{where}: {name} is null: every row has one")
    cap, rows = manifest.draft_cap or 0, []
    for at in range(batch.num_rows):
        row = {name: _entry(batch.column(name)[at], cap, where) for name in batch.schema.names}
        layers = [row.pop(name, None) for name in CONFIDENCES]
        known = [layer for layer in layers if layer is not None]
        if known:
            unknown = np.full_like(known[0], np.nan)
            layers = [unknown if layer is None else layer for layer in layers]
            row["confidences"] = np.stack(layers, axis=-1)
        rows.append(Request(**row))
    return rows


def _entry(stored: pa.Scalar, cap: int, where: str) -> Any:
    """A row's entry of a column, as requests have it."""
    if not stored.is_valid or not isinstance(stored, pa.ListScalar):
        return stored.as_py()
    values = stored.values
    if not pa.types.is_list(values.type):
        return np.array(values.fill_null(-1))
    pad = np.nan if pa.types.is_floating(values.type.value_type) else -1
    lengths = pc.list_value_length(values).fill_null(0).to_numpy()
    if lengths.max(initial=0) > cap:
        raise TraceError(f"{where}: a draft of {lengths.max()} tokens exceeds draft_cap={cap}")
    drafted = values.flatten().fill_null(pad).to_numpy()
    table = np.full((len(values), cap), pad, drafted.dtype)
    table[np.arange(cap) < lengths[:, None]] = drafted
    return table


Key = tuple[str, str]
Paths: TypeAlias = AnyPath | Iterable[AnyPath]
"""One path or several; a string is one path."""

MANIFEST = "manifest.json"
COMPLETE = "complete.json"
"""Name of the file that is written last, so a trace without it was cut off."""
RESTORE = "restore it from a copy, or record or import the trace again"
_MAX_BYTES = 16 << 20


def shard_name(number: int) -> str:
    """The file name of shard `number`."""
    return f"part-{number:05d}.parquet"


def is_shard(name: str) -> bool:
    """True for the name of a shard."""
    return re.fullmatch(r"part-\d{5,}\.parquet", name) is not None


def is_leftover(name: str) -> bool:
    """True for a file that a writer began but did not finish."""
    return name.startswith(".") and name.endswith(UNFINISHED)


def is_blank(folder: Path) -> bool:
    """True for a folder without files, or with none but what a killed writer left."""
    return all(is_leftover(each.name) for each in folder.iterdir())


class TraceReader:
    """Reads a trace folder, complete or cut off; anything unsound in it is an error.

    `warnings` lists what is missing from a folder whose writer was cut off.
    """

    def __init__(self, path: AnyPath):
        (self.path,) = paths_of(path)
        self.warnings: list[str] = []
        self.manifest = _manifest(self.path)
        self.shards = self._shards()
        self.rows = sum(map(self._rows_in, self.shards))
        """The number of its requests."""
        self._note_unfinished()

    def requests(self) -> Iterator[Request]:
        """The requests in recorded order."""
        limit = self.manifest.max_tokens
        seen: dict[Key, str] = {}
        for shard in self.shards:
            row = 0
            for batch in self._batches(shard, None, 64):
                named = f"{shard} rows {row}..{row + batch.num_rows - 1}"
                for request in batch_rows(batch, self.manifest, named):
                    where = f"{shard} row {row}"
                    if request.max_tokens is None and limit is not None:
                        request = replace(request, max_tokens=limit)
                    check_request(request, self.manifest, where)
                    _claim(seen, (request.workload, request.id), where)
                    yield request
                    row += 1

    def workloads(self) -> dict[str, int]:
        """Requests per workload, in recorded order."""
        return dict(Counter(workload for (workload, _), _ in self.request_keys()))

    def request_keys(self) -> Iterator[tuple[Key, str]]:
        """The (workload, id) of each request, with file and row number; reads no other columns."""
        for shard in self.shards:
            row = 0
            for batch in self._batches(shard, ["workload", "id"], 1 << 16):
                names = zip(*(batch.column(column).to_pylist() for column in range(2)), strict=True)
                for key in names:
                    yield key, f"{shard} row {row}"
                    row += 1

    def _batches(
        self, shard: Path, columns: list[str] | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        with _parquet(shard) as file:
            for batch in file.iter_batches(rows, columns=columns, use_threads=False):
                batch.validate(full=True)
                yield batch

    def _shards(self) -> list[Path]:
        found = [path.name for path in self.path.iterdir() if is_shard(path.name)]
        expected = [shard_name(number) for number in range(len(found))]
        for name in expected:
            if not (self.path / name).is_file():
                what = "not a file" if name in found else f"missing, though {max(found)} is not"
                raise TraceError(f"{self.path / name}: is {what}: {RESTORE}")
        return [self.path / name for name in expected]

    def _rows_in(self, shard: Path) -> int:
        """How many rows a shard has, whose columns are those that the manifest implies."""
        with _parquet(shard) as file:
            found, rows = file.schema_arrow, file.metadata.num_rows
        stored = {f"{field.name} ({field.type})" for field in found}
        implied = {f"{field.name} ({field.type})" for field in row_schema(self.manifest)}
        if LATER_COLUMN not in found.names:
            implied = {each for each in implied if not each.startswith(LATER_COLUMN)}
        if stored != implied or len(found) != len(stored):
            raise TraceError(
                f"{shard}: its manifest implies other columns: it lacks "
                f"{_listed(implied - stored)} and has {_listed(stored - implied)}: {RESTORE}"
            )
        return int(rows)

    def _note_unfinished(self) -> None:
        file = self.path / COMPLETE
        try:
            record = read_json(file, TraceError, RESTORE, _MAX_BYTES)
            if record != {"shards": len(self.shards)}:
                seen = f"there are {len(self.shards)} shards, but it says {record!r:.60}"
                raise TraceError(f"{file}: {seen}: {RESTORE}")
        except FileNotFoundError:
            self.warnings.append(
                f"{self.path}: its writer was cut off or is still at work (no {COMPLETE}): at most "
                "the rows that it had not written yet are missing, from a server those of the last "
                "seconds"
            )


def paths_of(paths: Paths) -> list[Path]:
    """The path or paths as a list."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    try:
        return [Path(each) for each in given]
    except TypeError as error:
        raise TraceError(f"{paths!r:.60} is no path, nor a list of paths: {error}") from None


read_trace = TraceReader
"""Open the trace in a folder: `manifest`, `requests()`, `workloads()`, `warnings`."""


def open_traces(paths: Paths) -> list[TraceReader]:
    """Readers of the trace folders at `paths`; no request may occur twice in them."""
    readers = [TraceReader(path) for path in paths_of(paths)]
    if not readers:
        raise TraceError("no trace given: name at least one trace folder")
    seen: dict[Key, str] = {}
    for reader in readers:
        for key, where in reader.request_keys():
            _claim(seen, key, where)
    return readers


def _claim(seen: dict[Key, str], key: Key, where: str) -> None:
    if key in seen:
        raise TraceError(
            f"{where}: request {key[1]!r} of workload {key[0]!r} is already in {seen[key]}"
        )
    seen[key] = where


def _manifest(path: Path) -> Manifest:
    advice = "give a folder that 'adaspec import' or 'adaspec record' wrote"
    if not path.is_dir():
        what = "is a file, not a trace's folder" if path.exists() else "there is no such folder"
        raise TraceError(f"{path}: {what}: {advice}")
    file = path / MANIFEST
    try:
        return Manifest.from_record(read_json(file, TraceError, RESTORE, _MAX_BYTES), str(file))
    except FileNotFoundError:
        traces = sorted(str(each.parent) for each in path.glob(f"*/{MANIFEST}"))
        if traces:
            some = f"{', '.join(traces[:20])}{', ..' if len(traces) > 20 else ''}"
            advice = f"but a folder of {len(traces)}: give one or several of {some}"
        raise TraceError(f"{path}: holds no {MANIFEST}, so it is no trace, {advice}") from None


@contextmanager
def _parquet(shard: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(shard, page_checksum_verification=True) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise TraceError(f"{shard}: truncated or damaged ({reason[0]}): {RESTORE}") from error


def _listed(columns: set[str]) -> str:
    return ", ".join(sorted(columns)) or "none"
