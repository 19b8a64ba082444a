"""Plain JSON lines of prompt and output tokens, one request per line.

    {"id": "7", "workload": "chat", "prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}

`prompt_tokens` and `output_tokens` are understood too. Without `workload`, the workload is the
file's name; without `id`, requests are numbered within their workload. `max_tokens` is the most
output tokens that the request was allowed. Optional keys, all indexed by position with entry 0 null
(or [] for lists): `neural_accepted`, `drafted_tokens` (a list of drafted tokens per position),
`logprob`, `margin`, `entropy` (a list per position, with one number or null per drafted token),
`ngram_accepted`. The neural cap is the largest neural count or draft in the files, as longer drafts
may never have been tried. Files are read twice, first for the caps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.documents import check_keys, number, or_null
from adaspec.errors import TraceError, shown
from adaspec.trace.importers.lines import (
    Lines,
    Progress,
    Record,
    Recording,
    counts,
    described,
    find_files,
    name_of,
    whole_numbers,
    workload_of,
)
from adaspec.trace.manifest import MAX_TOKENS, Manifest
from adaspec.trace.schema import CONFIDENCES, Request

_PROMPT = ("prompt_token_ids", "prompt_tokens")
_OUTPUT = ("output_token_ids", "output_tokens")
_NEURAL = ("neural_accepted", "drafted_tokens", *CONFIDENCES)
_CONFIDENCE = or_null(number(-1e38, 1e38, "a number"))
_KEYS = ("id", "workload", *_PROMPT, *_OUTPUT, *_NEURAL, "ngram_accepted", "max_tokens")


def read_recording(sources: list[Path], target: str | None, progress: Progress | None) -> Recording:
    """The recording in some `*.jsonl` files, or folders of them."""
    lines = Lines(find_files(sources, ("*.jsonl",)), progress, passes=2)
    manifest = _survey(lines, target)
    return Recording(manifest, _requests(lines, manifest))


def _survey(lines: Lines, target: str | None) -> Manifest:
    """The manifest that suits all lines together."""
    neural_cap = draft_cap = 0
    confidences: set[str] = set()
    for _, where, record in lines:
        check_keys(record, _KEYS, where, TraceError, optional=_KEYS)
        present = {key for key in _NEURAL if record.get(key) is not None}
        if present and "neural_accepted" not in present:
            raise TraceError(f"{where}: '{min(present)}' without 'neural_accepted'")
        if present & set(CONFIDENCES) and "drafted_tokens" not in present:
            raise TraceError(f"{where}: '{min(present)}' without 'drafted_tokens'")
        if "neural_accepted" in present:
            accepted = counts(record["neural_accepted"], "neural_accepted", where)
            neural_cap = max(neural_cap, 1, *accepted.tolist())
        if "drafted_tokens" in present:
            drafts = _per_position(record, "drafted_tokens", where)
            draft_cap = max(draft_cap, 1, *map(len, drafts))
        confidences |= present & set(CONFIDENCES)
    return Manifest(
        kind="dense",
        target=target,
        drafter="unknown" if neural_cap else None,
        neural_cap=max(neural_cap, draft_cap) or None,
        draft_cap=draft_cap or None,
        confidences=tuple(name for name in CONFIDENCES if name in confidences),
        source=described("jsonl", lines.files),
    )


def _requests(lines: Lines, manifest: Manifest) -> Iterator[tuple[str, Request]]:
    numbers: Counter[str] = Counter()
    for file, where, record in lines:
        workload = name_of(record.get("workload", workload_of(file)), "workload", where)
        number = numbers[workload]
        numbers[workload] += 1
        accepted, ngram = (
            None if record.get(key) is None else counts(record[key], key, where)
            for key in ("neural_accepted", "ngram_accepted")
        )
        drafted, confidences = _drafts(record, manifest.draft_cap, where)
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
    record: Record, cap: int | None, where: str
) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
    if cap is None or record.get("drafted_tokens") is None:
        return None, None
    drafts = _per_position(record, "drafted_tokens", where)
    drafted = np.full((len(drafts), cap), -1, dtype=np.int32)
    for index, draft in enumerate(drafts):
        ids = whole_numbers(draft, f"drafted_tokens[{index}]", where)
        if len(ids) and ids.min() < 0:
            raise TraceError(f"{where}: drafted_tokens[{index}] holds {ids.min()}, not a token id")
        drafted[index, : len(draft)] = ids
    confidences = np.full((*drafted.shape, len(CONFIDENCES)), np.nan, dtype=np.float32)
    known = [name for name in CONFIDENCES if record.get(name) is not None]
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
    return drafted, confidences if known else None
