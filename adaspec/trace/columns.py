"""Converts requests of a trace to Arrow columns, with nulls and ragged drafts, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES, Request


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
