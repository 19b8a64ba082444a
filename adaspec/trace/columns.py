"""Converts rows of a trace to Arrow columns and back.

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
from adaspec.trace.schema import CONFIDENCES, LoggedStep, Request

Ints = NDArray[np.integer[Any]]


def _list_of(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item))


_NAME = pa.string()
_TOKENS = _list_of(pa.int32())
_COUNTS = _list_of(pa.int16())

# pyarrow's to_pandas_dtype() is not used, as it imports pandas in older releases.
_NUMPY: dict[pa.DataType, type[np.generic]] = {
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.float32(): np.float32,
}

_LOGGED = pa.schema(
    [
        pa.field("workload", _NAME, nullable=False),
        pa.field("id", _NAME, nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("draft_len", pa.int16(), nullable=False),
        pa.field("accepted", pa.int16(), nullable=False),
        pa.field("source", _NAME, nullable=False),
        pa.field("position", pa.int32()),
        pa.field("context_tokens", pa.int32()),
        pa.field("running", pa.int32()),
        pa.field("neural_len", pa.int16()),
        pa.field("ngram_len", pa.int16()),
        pa.field("output_len", pa.int32()),
        pa.field("step_s", pa.float64()),
        pa.field("drafted_tokens", _TOKENS),
        pa.field("unverified_tokens", _TOKENS),
        pa.field("prompt_tokens", _TOKENS),
        pa.field("output_tokens", _TOKENS),
        pa.field("max_tokens", pa.int32()),
    ]
)
LATER_COLUMNS = ("prompt_tokens", "output_tokens", "unverified_tokens", "max_tokens")
"""Columns that the first traces lack; in a shard without them they are read as null."""
FORMER_COLUMNS = ("propensity", "neural_propensity")
"""Columns that only older traces have; nothing reads them."""


def row_schema(manifest: Manifest) -> pa.Schema:
    """The columns of a trace with this manifest; neural ones only if a neural drafter ran."""
    if manifest.kind == "logged":
        return _LOGGED
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


def row_batch(rows: Sequence[Request | LoggedStep], manifest: Manifest) -> pa.RecordBatch:
    """Sound rows as one record batch with the columns of `row_schema(manifest)`."""
    schema = row_schema(manifest)
    columns = [_column(rows, field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(rows: Sequence[Any], field: pa.Field) -> pa.Array:
    if field.name in CONFIDENCES:
        axis = CONFIDENCES.index(field.name)
        known = [row.confidences for row in rows]
        values = [None if each is None else each[:, :, axis] for each in known]
    else:
        values = [getattr(row, field.name) for row in rows]
    if not pa.types.is_list(field.type):
        return pa.array(values, type=field.type)
    item = field.type.value_type
    if pa.types.is_list(item):
        return _ragged_column([row.drafted_tokens for row in rows], values, item.value_type)
    return _list_column(values, item)


def batch_rows(batch: pa.RecordBatch, manifest: Manifest, where: str) -> list[Any]:
    """The rows in `batch`, each with its own arrays; their soundness is not checked here."""
    columns: dict[str, Sequence[Any]] = {}
    for expected in row_schema(manifest):
        name, kind = expected.name, expected.type
        if name not in batch.schema.names:
            continue
        column = batch.column(name)
        if column.null_count and not expected.nullable:
            raise TraceError(f"{where}: {name} is null: every row has one")
        if not pa.types.is_list(kind):
            columns[name] = column.to_pylist()
        elif not pa.types.is_list(kind.value_type):
            columns[name] = _lists(column, _NUMPY[kind.value_type])
        else:
            dtype = _NUMPY[kind.value_type.value_type]
            pad = np.nan if name in CONFIDENCES else -1
            columns[name] = _padded(column, manifest.draft_cap or 0, dtype, pad, where)
    if manifest.confidences:
        unknown = [None] * batch.num_rows
        layers = [columns.pop(name, unknown) for name in CONFIDENCES]
        columns["confidences"] = [_stacked(row) for row in zip(*layers, strict=True)]
    kind_of_row = Request if manifest.kind == "dense" else LoggedStep
    return [
        kind_of_row(**dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]


def _offsets(lengths: Sequence[int] | NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _joined(arrays: Sequence[NDArray[Any] | None], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *(a for a in arrays if a is not None)])


def _list_column(arrays: Sequence[Ints | None], item: pa.DataType) -> pa.Array:
    """A column of lists of `item`; None becomes a null list, and a negative entry a null."""
    values = _joined(arrays, _NUMPY[item])
    return pa.ListArray.from_arrays(
        _offsets([0 if array is None else len(array) for array in arrays]),
        pa.array(values, type=item, mask=values < 0),
        type=_list_of(item),
        mask=pa.array([array is None for array in arrays]),
    )


def _ragged_column(
    drafts: Sequence[Ints | None], values: Sequence[NDArray[Any] | None], item: pa.DataType
) -> pa.Array:
    """For each request and position, the entries of `values` that belong to a drafted token."""
    pairs = [
        (None, None) if draft is None or value is None else (draft >= 0, value)
        for draft, value in zip(drafts, values, strict=True)
    ]
    lengths = _joined([mask if mask is None else mask.sum(axis=1) for mask, _ in pairs], np.int64)
    entries = _joined(
        [v if shown is None or v is None else v[shown] for shown, v in pairs], np.float64
    )
    starts = [np.arange(len(mask)) == 0 for mask, _ in pairs if mask is not None]
    inner = pa.ListArray.from_arrays(
        _offsets(lengths),
        pa.array(entries.astype(_NUMPY[item]), type=item),
        type=_list_of(item),
        mask=pa.array(_joined(starts, np.bool_)),
    )
    return pa.ListArray.from_arrays(
        _offsets([0 if mask is None else len(mask) for mask, _ in pairs]),
        inner,
        type=_list_of(_list_of(item)),
        mask=pa.array([mask is None for mask, _ in pairs]),
    )


def _spans(column: pa.ListArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Where each list of `column` starts and ends, and the items of all lists, without a copy."""
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first = int(offsets[0]) if len(offsets) else 0
    last = int(offsets[-1]) if len(offsets) else 0
    return offsets - first, column.values.slice(first, last - first)


def _numbers(items: pa.Array, dtype: type[np.generic], null: float) -> NDArray[Any]:
    filled = items.fill_null(pa.scalar(null, type=items.type))
    numbers: NDArray[Any] = filled.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    return numbers


def _lists(column: pa.ListArray, dtype: type[np.generic]) -> list[NDArray[Any] | None]:
    offsets, items = _spans(column)
    numbers, present = _numbers(items, dtype, -1), column.is_valid().to_pylist()
    return [
        # A copy, so that keeping one request does not keep its whole batch in memory.
        numbers[offsets[row] : offsets[row + 1]].copy() if present[row] else None
        for row in range(len(column))
    ]


def _padded(
    column: pa.ListArray, cap: int, dtype: type[np.generic], pad: float, where: str
) -> list[NDArray[Any] | None]:
    """For each request a (positions, cap) array of its ragged entries, filled up with `pad`."""
    outer, positions = _spans(column)
    inner, items = _spans(positions)
    numbers, present = _numbers(items, dtype, pad), column.is_valid().to_pylist()
    lengths = np.diff(inner)
    if len(lengths) and lengths.max() > cap:
        raise TraceError(f"{where}: a draft of {lengths.max()} tokens exceeds draft_cap={cap}")
    padded: list[NDArray[Any] | None] = []
    for row in range(len(column)):
        start, stop = int(outer[row]), int(outer[row + 1])
        table = np.full((stop - start, cap), pad, dtype=dtype)
        filled = np.arange(cap) < lengths[start:stop, None]
        table[filled] = numbers[inner[start] : inner[stop]]
        padded.append(table if present[row] else None)
    return padded


def _stacked(layers: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    known = [layer for layer in layers if layer is not None]
    if not known:
        return None
    unknown = np.full_like(known[0], np.nan)
    return np.stack([unknown if layer is None else layer for layer in layers], axis=-1)
