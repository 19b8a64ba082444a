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
_NUMPY = {pa.int16(): np.int16, pa.int32(): np.int32, pa.float32(): np.float32}

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
        pa.field("propensity", pa.float64()),
        pa.field("step_s", pa.float64()),
        pa.field("drafted_tokens", _TOKENS),
        pa.field("prompt_tokens", _TOKENS),
        pa.field("output_tokens", _TOKENS),
    ]
)
LATER_COLUMNS = ("prompt_tokens", "output_tokens")
"""Columns that the first logged traces lack; in a shard without them they are read as null."""
_STEP_LISTS = ("drafted_tokens", *LATER_COLUMNS)


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
    ]
    if manifest.neural_cap is not None:
        columns.append(pa.field("neural_accepted", _COUNTS))
    if manifest.draft_cap is not None:
        columns.append(pa.field("drafted_tokens", _list_of(_TOKENS)))
    for name in CONFIDENCES:
        if name in manifest.confidences:
            columns.append(pa.field(name, _list_of(_list_of(pa.float32()))))
    return pa.schema(columns)


def request_batch(requests: Sequence[Request], manifest: Manifest) -> pa.RecordBatch:
    """Sound requests as one record batch with the columns of `row_schema(manifest)`."""
    schema = row_schema(manifest)
    columns: dict[str, pa.Array] = {
        "workload": pa.array([row.workload for row in requests], type=_NAME),
        "id": pa.array([row.id for row in requests], type=_NAME),
        "prompt_tokens": _list_column([row.prompt_tokens for row in requests], pa.int32()),
        "output_tokens": _list_column([row.output_tokens for row in requests], pa.int32()),
        "ngram_accepted": _list_column([row.ngram_accepted for row in requests], pa.int16()),
        "neural_accepted": _list_column([row.neural_accepted for row in requests], pa.int16()),
    }
    if manifest.draft_cap is not None:
        drafts = [row.drafted_tokens for row in requests]
        columns["drafted_tokens"] = _ragged_column(drafts, drafts, pa.int32())
        for name in manifest.confidences:
            axis = CONFIDENCES.index(name)
            values = [
                None if row.confidences is None else row.confidences[:, :, axis] for row in requests
            ]
            columns[name] = _ragged_column(drafts, values, pa.float32())
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def step_batch(steps: Sequence[LoggedStep], manifest: Manifest) -> pa.RecordBatch:
    """Sound steps as one record batch with the columns of `row_schema(manifest)`."""
    schema = row_schema(manifest)
    arrays = []
    for column in schema:
        values = [getattr(step, column.name) for step in steps]
        if column.name in _STEP_LISTS:
            arrays.append(_list_column(values, pa.int32()))
        else:
            arrays.append(pa.array(values, type=column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_requests(batch: pa.RecordBatch, manifest: Manifest, where: str) -> list[Request]:
    """The requests in `batch`, each with its own arrays; their soundness is not checked here."""
    nothing: list[Any] = [None] * batch.num_rows
    for name in ("workload", "id", "prompt_tokens", "output_tokens"):
        if batch.column(name).null_count:
            raise TraceError(f"{where}: {name} is null: every request has one")

    def lists(name: str, dtype: type[np.generic]) -> list[Any]:
        return _lists(batch.column(name), dtype) if name in batch.schema.names else nothing

    drafts: list[Any] = nothing
    confidences: list[Any] = nothing
    if manifest.draft_cap is not None:
        cap = manifest.draft_cap
        drafts = _padded(batch.column("drafted_tokens"), cap, np.int32, -1, where)
        layers = {
            name: _padded(batch.column(name), cap, np.float32, np.nan, where)
            for name in manifest.confidences
        }
        confidences = [
            _stacked([layers[name][row] if name in layers else None for name in CONFIDENCES])
            for row in range(batch.num_rows)
        ]
    return [
        Request(*row)
        for row in zip(
            batch.column("workload").to_pylist(),
            batch.column("id").to_pylist(),
            lists("prompt_tokens", np.int32),
            lists("output_tokens", np.int32),
            lists("neural_accepted", np.int16),
            drafts,
            confidences,
            lists("ngram_accepted", np.int16),
            strict=True,
        )
    ]


def batch_steps(batch: pa.RecordBatch) -> list[LoggedStep]:
    """The steps in `batch`; their soundness is not checked here."""
    columns = {
        name: batch.column(name).to_pylist()
        for name in batch.schema.names
        if name not in _STEP_LISTS
    }
    for name in _STEP_LISTS:
        if name in batch.schema.names:
            columns[name] = _lists(batch.column(name), np.int32)
    names = list(columns)
    return [
        LoggedStep(**dict(zip(names, row, strict=True)))
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
