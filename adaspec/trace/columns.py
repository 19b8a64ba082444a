"""Converts requests of a trace to Arrow columns and back.

On disk a null entry is a null, and drafts are ragged, so that any Parquet tool can read a trace. In
memory entry 0 of a count is -1, and drafted tokens and confidences are padded to the draft cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES, Request


def _list_of(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item))


_NAME = pa.string()
_TOKENS = _list_of(pa.int32())
_COUNTS = _list_of(pa.int16())

LATER_COLUMN = "max_tokens"
"""The column that the first traces lack; in a shard without it no request has a limit."""


def row_schema(manifest: Manifest) -> pa.Schema:
    """The columns of a trace with this manifest; neural ones only if a neural drafter ran."""
    columns = [
        pa.field("workload", _NAME, nullable=False),
        pa.field("id", _NAME, nullable=False),
        pa.field("prompt_tokens", _TOKENS, nullable=False),
        pa.field("output_tokens", _TOKENS, nullable=False),
        pa.field("ngram_accepted", _COUNTS),
        pa.field("max_tokens", pa.int32()),
    ]
    if manifest.neural_cap is not None:
        columns.append(pa.field("neural_accepted", _COUNTS))
    if manifest.draft_cap is not None:
        columns.append(pa.field("drafted_tokens", _list_of(_TOKENS)))
    for name in CONFIDENCES:
        if name in manifest.confidences:
            columns.append(pa.field(name, _list_of(_list_of(pa.float32()))))
    return pa.schema(columns)


def row_batch(rows: Sequence[Request], manifest: Manifest) -> pa.RecordBatch:
    """Sound requests as one record batch with the columns of `row_schema(manifest)`."""
    schema = row_schema(manifest)
    columns = [pa.array([_stored(row, field) for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _stored(row: Any, field: pa.Field) -> Any:
    """A row's entry of a column, as Arrow takes it."""
    if field.name in CONFIDENCES:
        known = row.confidences
        value = None if known is None else known[:, :, CONFIDENCES.index(field.name)]
    else:
        value = getattr(row, field.name)
    if value is None or not pa.types.is_list(field.type):
        return value
    if field.type == _COUNTS:
        return [None, *value[1:].tolist()] if len(value) else []
    if field.type == _TOKENS:
        return value
    lengths = (row.drafted_tokens >= 0).sum(axis=1).tolist()
    drafts = [each[:length] for each, length in zip(value, lengths, strict=True)]
    return [None, *drafts[1:]] if drafts else []


def batch_rows(batch: pa.RecordBatch, manifest: Manifest, where: str) -> list[Request]:
    """The requests in `batch`, each with its own arrays; their soundness is not checked here."""
    columns: dict[str, list[Any]] = {}
    cap = manifest.draft_cap or 0
    for field in row_schema(manifest):
        if field.name not in batch.schema.names:
            continue
        column = batch.column(field.name)
        if column.null_count and not field.nullable:
            raise TraceError(f"{where}: {field.name} is null: every row has one")
        entries: list[Any] = column.to_pylist()
        if field.type == _TOKENS:
            entries = [_counts(entry, np.int32) for entry in entries]
        elif field.type == _COUNTS:
            entries = [_counts(entry, np.int16) for entry in entries]
        elif field.name in CONFIDENCES:
            entries = [_padded(entry, cap, np.float32, np.nan, where) for entry in entries]
        elif pa.types.is_list(field.type):
            entries = [_padded(entry, cap, np.int32, -1, where) for entry in entries]
        columns[field.name] = entries
    if manifest.confidences:
        unknown = [None] * batch.num_rows
        layers = [columns.pop(name, unknown) for name in CONFIDENCES]
        columns["confidences"] = [_stacked(row) for row in zip(*layers, strict=True)]
    return [
        Request(**dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]


def _counts(entry: list[int | None] | None, dtype: Any) -> NDArray[Any] | None:
    """An array of a list, with -1 for null."""
    if entry is None:
        return None
    return np.array([-1 if value is None else value for value in entry], dtype)


def _padded(
    entry: list[list[Any] | None] | None, cap: int, dtype: Any, pad: float, where: str
) -> NDArray[Any] | None:
    """A (positions, cap) array of a request's drafts, filled up with `pad`."""
    if entry is None:
        return None
    table = np.full((len(entry), cap), pad, dtype)
    for position, draft in enumerate(entry):
        if draft:
            if len(draft) > cap:
                raise TraceError(f"{where}: a draft of {len(draft)} tokens exceeds draft_cap={cap}")
            table[position, : len(draft)] = draft  # numpy turns a null into NaN
    return table


def _stacked(layers: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    known = [layer for layer in layers if layer is not None]
    if not known:
        return None
    unknown = np.full_like(known[0], np.nan)
    return np.stack([unknown if layer is None else layer for layer in layers], axis=-1)
