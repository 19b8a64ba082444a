"""Converts requests of a trace to Arrow columns and back.

On disk a null entry is a null, and drafts are ragged, so that any Parquet tool can read a trace. In
memory entry 0 of a count is -1, and drafted tokens and confidences are padded to the draft cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES, Request


def _list_of(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item))


_TOKENS = _list_of(pa.int32())
_COUNTS = _list_of(pa.int16())
_DRAFTS = _list_of(_TOKENS)

LATER_COLUMN = "max_tokens"
"""The column that the first traces lack; in a shard without it no request has a limit."""


def row_schema(manifest: Manifest) -> pa.Schema:
    """The columns of a trace with this manifest; neural ones only if a neural drafter ran."""
    columns = [
        pa.field("workload", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt_tokens", _TOKENS, nullable=False),
        pa.field("output_tokens", _TOKENS, nullable=False),
        pa.field("ngram_accepted", _COUNTS),
        pa.field("max_tokens", pa.int32()),
    ]
    if manifest.neural_cap is not None:
        columns.append(pa.field("neural_accepted", _COUNTS))
    if manifest.draft_cap is not None:
        columns.append(pa.field("drafted_tokens", _DRAFTS))
    for name in manifest.confidences:
        columns.append(pa.field(name, _list_of(_list_of(pa.float32()))))
    return pa.schema(columns)


def row_batch(rows: Sequence[Request], manifest: Manifest) -> pa.RecordBatch:
    """Sound requests as one record batch with the columns of `row_schema(manifest)`."""
    schema = row_schema(manifest)
    columns = [pa.array([_stored(row, field) for row in rows], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _stored(row: Any, field: pa.Field) -> Any:
    """A row's entry of a column, as Arrow takes it."""
    if field.name not in CONFIDENCES:
        value = getattr(row, field.name)
    elif row.confidences is not None:
        value = row.confidences[..., CONFIDENCES.index(field.name)]
    else:
        value = None
    if value is None or field.type == _TOKENS or not pa.types.is_list(field.type):
        return value
    entries = list(value)
    if field.type != _COUNTS:
        lengths = (row.drafted_tokens >= 0).sum(axis=1)
        entries = [draft[:length] for draft, length in zip(value, lengths, strict=True)]
    entries[:1] = [None] * len(entries[:1])
    return entries


def batch_rows(batch: pa.RecordBatch, manifest: Manifest, where: str) -> list[Request]:
    """The requests in `batch`, each with its own arrays; their soundness is not checked here."""
    columns: dict[str, list[Any]] = {}
    for field in row_schema(manifest):
        if field.name not in batch.schema.names:
            continue
        column = batch.column(field.name)
        if column.null_count and not field.nullable:
            raise TraceError(f"{where}: {field.name} is null: every row has one")
        if not pa.types.is_list(field.type):
            columns[field.name] = column.to_pylist()
            continue
        entries = [entry.values for entry in column]
        if field.type in (_TOKENS, _COUNTS):
            found = [None if each is None else np.array(each.fill_null(-1)) for each in entries]
        else:
            found = [_padded(each, manifest.draft_cap or 0, where) for each in entries]
        columns[field.name] = found
    if manifest.confidences:
        unknown = [None] * batch.num_rows
        layers = [columns.pop(name, unknown) for name in CONFIDENCES]
        columns["confidences"] = [_stacked(row) for row in zip(*layers, strict=True)]
    return [
        Request(**dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]


def _padded(drafts: pa.ListArray | None, cap: int, where: str) -> NDArray[Any] | None:
    """A (positions, cap) array of a request's drafts, filled up with -1 or NaN."""
    if drafts is None:
        return None
    pad = np.nan if pa.types.is_floating(drafts.type.value_type) else -1
    lengths = pc.list_value_length(drafts).fill_null(0).to_numpy()
    if lengths.max(initial=0) > cap:
        raise TraceError(f"{where}: a draft of {lengths.max()} tokens exceeds draft_cap={cap}")
    values = drafts.flatten().fill_null(pad).to_numpy()
    table = np.full((len(drafts), cap), pad, values.dtype)
    table[np.arange(cap) < lengths[:, None]] = values
    return table


def _stacked(layers: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    known = [layer for layer in layers if layer is not None]
    if not known:
        return None
    unknown = np.full_like(known[0], np.nan)
    return np.stack([unknown if layer is None else layer for layer in layers], axis=-1)
