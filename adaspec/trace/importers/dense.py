"""Dense recordings as JSON lines, one request per line: plain ones, and the public recordings.

**jsonl**

    {"id": "7", "workload": "chat", "prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}

Without `workload`, the workload is the file's name; without `id`, requests are numbered within
their workload. `max_tokens` is the most output tokens that the request was allowed. Optional keys,
all indexed by position with entry 0 null (or [] for lists): `neural_accepted`, `drafted_tokens` (a
list of drafted tokens per position), `logprob`, `margin`, `entropy` (a list per position, with one
number or null per drafted token), `ngram_accepted`. The neural cap is the largest neural count or
draft in the files, as longer drafts may never have been tried.

**specdecode-bench**: `combined_*.jsonl` of github.com/SpecDecode-Bench/simulator. Each line has
`id`, `prompt_token_ids`, `generated_token_ids`, `acc_eagle.acc_len` and `acc_ngram.acc_len`.
`acc_len[i]` belongs to the context prompt + generated[:i] and counts the bonus token, so accepted =
acc_len - 1. Entry 0 has no meaning and becomes null. The lists come from different runs and are
stored as recorded, each with its own length: a request whose EAGLE list is not as long as its
output is not paired. Recorded n-gram counts may exceed the output's end (by up to 6 tokens after an
end-of-text, by up to 19 if the output was cut off at 8,192); EAGLE counts do not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from adaspec.errors import TraceError
from adaspec.records import convert
from adaspec.trace.importers.lines import (
    ImportedTrace,
    Progress,
    Record,
    lines_of,
    name_of,
    workload_of,
)
from adaspec.trace.manifest import Manifest, TokenLimit, manifest_for
from adaspec.trace.schema import CONFIDENCES, Request, as_array

Layers = (
    Annotated[list[list[Any] | None], Meta(description="a list with a list per position")] | None
)

_TEXT = ("prompt_token_ids", "output_token_ids")
_COUNTS = ("neural_accepted", "ngram_accepted")
_DRAFTS = ("drafted_tokens", *CONFIDENCES)


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a line of plain JSON says of a request; numpy reads its numbers."""

    prompt_token_ids: Any
    output_token_ids: Any
    id: Any = None
    workload: Any = None
    max_tokens: TokenLimit | None = None
    neural_accepted: Any = None
    ngram_accepted: Any = None
    drafted_tokens: Layers = None
    logprob: Layers = None
    margin: Layers = None
    entropy: Layers = None


_PUBLIC_CAP = 20
"""Tokens that the engine of the public recordings drafted at each position, from either source."""
_PUBLIC = ("id", "prompt_token_ids", "generated_token_ids", "acc_eagle", "acc_ngram")


def read_jsonl(files: list[Path], target: str | None, progress: Progress | None) -> ImportedTrace:
    """The recording in some files of plain JSON lines; all of it is held in memory."""
    numbers: Counter[str] = Counter()
    rows = []
    for file, where, record in lines_of(files, progress):
        line = convert(record, Line, where, TraceError)
        rows.append((where, _request(line, workload_of(file), numbers, where)))
    return ImportedTrace(manifest_for([each for _, each in rows], target, None), rows)


def read_public(files: list[Path], target: str | None, progress: Progress | None) -> ImportedTrace:
    """The recording in some files as the public recordings are."""
    manifest = Manifest(
        target=target,
        drafter="eagle",
        neural_cap=_PUBLIC_CAP,
        engine="vllm",
    )
    notes: Counter[str] = Counter()
    return ImportedTrace(manifest, _public_requests(files, progress, notes), notes)


def _public_requests(
    files: list[Path], progress: Progress | None, notes: Counter[str]
) -> Iterator[tuple[str, Request]]:
    for file, where, record in lines_of(files, progress):
        for key in record.keys() - set(_PUBLIC):
            notes[f"key '{key}' ignored"] += 1
        for key in _PUBLIC[:3]:
            if record.get(key) is None:
                raise TraceError(f"{where}: '{key}' is missing")
        plain = Line(
            id=record["id"],
            prompt_token_ids=record["prompt_token_ids"],
            output_token_ids=record["generated_token_ids"],
            neural_accepted=_without_bonus(record, "acc_eagle", where),
            ngram_accepted=_without_bonus(record, "acc_ngram", where),
        )
        yield where, _request(plain, workload_of(file), Counter(), where)


def _without_bonus(record: Record, key: str, where: str) -> NDArray[np.int16] | None:
    """Accepted counts without the bonus token, null at entry 0; None if there is no list."""
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, dict) or "acc_len" not in value:
        raise TraceError(f"{where}: '{key}' holds no 'acc_len'")
    name = f"{key}.acc_len"
    emitted = as_array(value["acc_len"], np.int16, f"{where}: {name}")
    if len(emitted) and emitted.min() < 1:
        index = int(np.argmin(emitted))
        raise TraceError(
            f"{where}: {name}[{index}]={emitted[index]} is below 1: it counts the bonus token"
        )
    accepted = emitted - np.int16(1)
    accepted[:1] = -1
    return accepted


def _request(line: Line, default: str, numbers: Counter[str], where: str) -> Request:
    """The request of a line of jsonl."""
    workload = default if line.workload is None else name_of(line.workload, "workload", where)
    number = numbers[workload]
    numbers[workload] += 1
    prompt, output = (as_array(getattr(line, key), np.int32, f"{where}: {key}") for key in _TEXT)
    accepted, ngram = (
        None
        if (counts := getattr(line, key)) is None
        else as_array(counts, np.int16, f"{where}: {key}")
        for key in _COUNTS
    )
    drafted, confidences = _drafts(line, where)
    return Request(
        workload=workload,
        id=str(number) if line.id is None else name_of(line.id, "id", where),
        prompt_tokens=prompt,
        output_tokens=output,
        neural_accepted=accepted,
        drafted_tokens=drafted,
        confidences=confidences,
        ngram_accepted=ngram,
        max_tokens=line.max_tokens,
    )


def _drafts(line: Line, where: str) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
    """Drafted tokens and confidences, as wide as the longest draft of the request."""
    tables = {}
    for name in _DRAFTS:
        values = getattr(line, name)
        if values is not None:
            tables[name] = [entry or [] for entry in values]
    drafts = tables.pop("drafted_tokens", None)
    if drafts is None:
        if tables:
            raise TraceError(f"{where}: '{min(tables)}' without 'drafted_tokens'")
        return None, None
    width = max([1, *map(len, drafts)])
    padded = [[*draft, *[-1] * (width - len(draft))] for draft in drafts]
    drafted = as_array(padded, np.int32, f"{where}: drafted_tokens")
    if not tables:
        return drafted, None
    confidences = np.full((*drafted.shape, len(CONFIDENCES)), np.nan, dtype=np.float32)
    for name, layers in tables.items():
        if [len(layer) for layer in layers] != [len(draft) for draft in drafts]:
            raise TraceError(f"{where}: '{name}' has not one number per drafted token")
        for index, layer in enumerate(layers):
            numbers = [math.nan if value is None else value for value in layer]
            known = as_array(numbers, np.float32, f"{where}: {name}[{index}]")
            confidences[index, : len(layer), CONFIDENCES.index(name)] = known
    return drafted, confidences
