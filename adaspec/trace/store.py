"""Opens a trace, or writes one from requests in memory, in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.arguments import AnyPath, path_of, truth
from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Request
from adaspec.trace.writer import TraceWriter

_INTEGERS: dict[str, type[np.integer[Any]]] = {
    "prompt_tokens": np.int32,
    "output_tokens": np.int32,
    "neural_accepted": np.int16,
    "drafted_tokens": np.int32,
    "ngram_accepted": np.int16,
}
"""The integer arrays of a request, for which callers may also give lists."""


def read_trace(path: AnyPath) -> TraceReader:
    """Open the trace in a folder: `manifest`, `requests()`, `workloads()`, `warnings`."""
    return TraceReader(path)


def write_trace(
    path: AnyPath,
    requests: Iterable[Request],
    *,
    target: str | None = None,
    drafter: str | None = None,
    manifest: Manifest | None = None,
    force: bool = False,
) -> None:
    """Write a dense trace of these requests, whole or not at all.

    `target` and `drafter` name the models. The caps are the largest neural count and the longest
    draft among the requests, as longer drafts cannot be replayed. A `manifest` can replace both.
    """
    where = path_of(path, "the trace", TraceError)
    truth(force, "force", TraceError)
    if manifest is None:
        requests = list(_arrays(requests, f"{where}"))
        manifest = _manifest(requests, target, drafter)
    elif target is not None or drafter is not None:
        raise TraceError(f"{where}: a manifest is given, which names target and drafter itself")
    with TraceWriter(where, manifest, force=force, whole=True) as writer:
        empty = True
        for request in _arrays(requests, f"{where}"):
            writer.add(request)
            empty = False
        if empty:
            raise TraceError(f"{where}: there is no request to write")


def _manifest(requests: list[Request], target: str | None, drafter: str | None) -> Manifest:
    drafts = [each.drafted_tokens for each in requests if each.drafted_tokens is not None]
    counts = [each.neural_accepted for each in requests if each.neural_accepted is not None]
    known = [each.confidences for each in requests if each.confidences is not None]
    draft_cap = max((each.shape[1] for each in drafts if each.ndim == 2), default=0)
    neural_cap = max((int(each.max(initial=1)) for each in counts), default=0)
    return Manifest(
        kind="dense",
        target=target,
        drafter=drafter if drafter is not None or not counts else "unknown",
        neural_cap=max(neural_cap, draft_cap) or None,
        draft_cap=draft_cap or None,
        confidences=tuple(name for axis, name in enumerate(CONFIDENCES) if _holds(known, axis)),
        source="write_trace",
    )


def _holds(known: list[NDArray[np.float32]], axis: int) -> bool:
    return any(each.shape[2:] > (axis,) and not np.isnan(each[..., axis]).all() for each in known)


def _arrays(requests: Iterable[Request], where: str) -> Iterator[Request]:
    """The requests with lists turned into arrays; anything but requests and numbers is refused."""
    if not isinstance(requests, Iterable):
        raise TraceError(f"{where}: the requests are a {type(requests).__name__}, no list of them")
    for number, request in enumerate(requests):
        label = f"{where}: request {number}"
        if not isinstance(request, Request):
            raise TraceError(f"{label} is a {type(request).__name__}: give adaspec.Request objects")
        changes: dict[str, Any] = {}
        for name, kind in _INTEGERS.items():
            value = getattr(request, name)
            if value is not None:
                changes[name] = _integers(value, kind, f"{label}: {name}")
            elif name in ("prompt_tokens", "output_tokens"):
                raise TraceError(f"{label}: {name} is None: give token ids")
        if request.confidences is not None:
            changes["confidences"] = _array(request.confidences, f"{label}: confidences").astype(
                np.float32
            )
        yield dataclasses.replace(request, **changes)


def _integers(values: Any, kind: type[np.integer[Any]], what: str) -> NDArray[Any]:
    if isinstance(values, list) and values[:1] == [None]:
        values = [-1, *values[1:]]
    array, bounds = _array(values, what), np.iinfo(kind)
    if array.size and array.dtype.kind not in "iu":
        raise TraceError(f"{what} holds no whole numbers: {values!r:.60}")
    if array.size and not bounds.min <= array.min() <= array.max() <= bounds.max:
        raise TraceError(f"{what} holds numbers beyond {bounds.bits} bits")
    return array.astype(kind, copy=False)


def _array(values: Any, what: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise TraceError(f"{what} is no array of numbers: {values!r:.60}")
    return array
