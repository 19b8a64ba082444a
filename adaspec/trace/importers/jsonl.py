"""Plain JSON lines of prompt and output tokens, one request per line.

    {"id": "7", "workload": "chat", "prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}

`prompt_tokens` and `output_tokens` are understood too. Without `workload`, the workload is the
file's name; without `id`, requests are numbered within their workload. `max_tokens` is the most
output tokens that the request was allowed. Optional keys, all indexed by position with entry 0 null
(or [] for lists): `neural_accepted`, `drafted_tokens` (a list of drafted tokens per position),
`logprob`, `margin`, `entropy` (a list per position, with one number or null per drafted token),
`ngram_accepted`. The neural cap is the largest neural count or draft in the files, as longer drafts
may never have been tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.documents import check_keys, number, or_null
from adaspec.errors import TraceError, shown
from adaspec.trace.importers.lines import (
    Progress,
    Record,
    Recording,
    counts,
    described,
    find_files,
    lines_of,
    name_of,
    whole_numbers,
    workload_of,
)
from adaspec.trace.manifest import MAX_TOKENS, Manifest, manifest_for
from adaspec.trace.schema import CONFIDENCES, Request

_PROMPT = ("prompt_token_ids", "prompt_tokens")
_OUTPUT = ("output_token_ids", "output_tokens")
_NEURAL = ("neural_accepted", "drafted_tokens", *CONFIDENCES)
_CONFIDENCE = or_null(number(-1e38, 1e38, "a number"))
_KEYS = ("id", "workload", *_PROMPT, *_OUTPUT, *_NEURAL, "ngram_accepted", "max_tokens")


def read_recording(sources: list[Path], target: str | None, progress: Progress | None) -> Recording:
    """The recording in some `*.jsonl` files, or folders of them; all of it is held in memory."""
    files = find_files(sources, "*.jsonl")
    rows = list(_requests(files, progress))
    source = described("jsonl", files)
    manifest = manifest_for([request for _, request in rows], target, None, source)
    return Recording(manifest, ((where, _widened(each, manifest)) for where, each in rows))


def _requests(files: list[Path], progress: Progress | None) -> Iterator[tuple[str, Request]]:
    """The requests, each with drafts as wide as its own longest."""
    numbers: Counter[str] = Counter()
    for file, where, record in lines_of(files, progress):
        check_keys(record, _KEYS, where, TraceError, optional=_KEYS)
        workload = name_of(record.get("workload", workload_of(file)), "workload", where)
        number = numbers[workload]
        numbers[workload] += 1
        accepted, ngram = (
            None if record.get(key) is None else counts(record[key], key, where)
            for key in ("neural_accepted", "ngram_accepted")
        )
        drafted, confidences = _drafts(record, where)
        if drafted is not None and accepted is None:
            raise TraceError(f"{where}: 'drafted_tokens' without 'neural_accepted'")
        limit = record.get("max_tokens")
        if limit is not None and not MAX_TOKENS.holds(limit):
            raise TraceError(f"{where}: max_tokens={limit!r:.60} is not {MAX_TOKENS.expected}")
        request = Request(
            workload=workload,
            id=name_of(record.get("id", number), "id", where),
            prompt_tokens=_tokens(record, _PROMPT, where),
            output_tokens=_tokens(record, _OUTPUT, where),
            neural_accepted=accepted,
            drafted_tokens=drafted,
            confidences=confidences,
            ngram_accepted=ngram,
            max_tokens=limit,
        )
        yield where, request


def _tokens(record: Record, keys: tuple[str, ...], where: str) -> NDArray[np.int32]:
    present = [key for key in keys if key in record]
    if len(present) != 1:
        number = "both" if present else "neither"
        raise TraceError(f"{where}: needs one of '{keys[0]}' and '{keys[1]}', has {number}")
    return whole_numbers(record[present[0]], present[0], where).astype(np.int32)


def _per_position(record: Record, key: str, where: str) -> list[list[Any]]:
    """One list per position; a null becomes an empty list."""
    values = record[key]
    if not isinstance(values, list):
        raise TraceError(f"{where}: '{key}' is a {type(values).__name__}, expected a list of lists")
    for index, entry in enumerate(values):
        if not isinstance(entry, list | None):
            raise TraceError(f"{where}: {key}[{index}]={entry!r} is not a list")
    return [entry or [] for entry in values]


def _drafts(
    record: Record, where: str
) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
    known = [name for name in CONFIDENCES if record.get(name) is not None]
    if record.get("drafted_tokens") is None:
        if known:
            raise TraceError(f"{where}: '{known[0]}' without 'drafted_tokens'")
        return None, None
    drafts = _per_position(record, "drafted_tokens", where)
    width = max(map(len, drafts), default=0)
    drafted = np.full((len(drafts), max(width, 1)), -1, dtype=np.int32)
    for index, draft in enumerate(drafts):
        ids = whole_numbers(draft, f"drafted_tokens[{index}]", where)
        if len(ids) and ids.min() < 0:
            raise TraceError(f"{where}: drafted_tokens[{index}] holds {ids.min()}, not a token id")
        drafted[index, : len(draft)] = ids
    if not known:
        return drafted, None
    confidences = np.full((*drafted.shape, len(CONFIDENCES)), np.nan, dtype=np.float32)
    for name in known:
        layers = _per_position(record, name, where)
        if [len(layer) for layer in layers] != [len(draft) for draft in drafts]:
            raise TraceError(f"{where}: '{name}' has not one number per drafted token")
        for index, layer in enumerate(layers):
            for value in layer:
                if not _CONFIDENCE.holds(value):
                    raise TraceError(f"{where}: {name}[{index}] holds {shown(value)}, not a number")
            # numpy turns a null into NaN.
            confidences[index, : len(layer), CONFIDENCES.index(name)] = np.array(layer, np.float64)
    return drafted, confidences


def _widened(request: Request, manifest: Manifest) -> Request:
    """The request with drafts as wide as the longest of all."""
    drafted, confidences = request.drafted_tokens, request.confidences
    if drafted is None:
        return request
    more = (manifest.draft_cap or 0) - drafted.shape[1]
    if confidences is not None:
        pad = ((0, 0), (0, more), (0, 0))
        confidences = np.pad(confidences, pad, constant_values=np.nan)
    drafted = np.pad(drafted, ((0, 0), (0, more)), constant_values=-1)
    return replace(request, drafted_tokens=drafted, confidences=confidences)
