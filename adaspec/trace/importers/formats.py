"""The formats that can be imported, and the function that turns any of them into a trace.

**jsonl**

    {"id": "7", "workload": "chat", "prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}

Without `workload`, the workload is the file's name; without `id`, requests are numbered within
their workload. Optional keys, indexed by position with entry 0 null (or [] for lists), are
`neural_accepted`, `ngram_accepted`, `drafted_tokens` (a list per position), and `logprob`, `margin`
and `entropy` (one number or null per drafted token). `max_tokens` is the request's limit.

**specdecode-bench**: `combined_*.jsonl` of github.com/SpecDecode-Bench/simulator, where
`acc_len[i]` belongs to the context prompt + generated[:i] and counts the bonus token. Its lists are
of different runs: a request whose EAGLE list is not as long as its output is not paired, and n-gram
counts may exceed the output's end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from adaspec.errors import TraceError, check_word
from adaspec.files import AnyPath
from adaspec.records import convert
from adaspec.trace.importers import texts
from adaspec.trace.importers.lines import (
    Format,
    Line,
    Progress,
    Record,
    find_files,
    lines_of,
    name_of,
    workload_of,
)
from adaspec.trace.manifest import Manifest, manifest_for
from adaspec.trace.reader import Paths, paths_of
from adaspec.trace.schema import CONFIDENCES, Request, as_array
from adaspec.trace.writer import whole_trace

TEXTS = "texts"
UNPAIRED = "neural counts of another length than their output, and so not paired with it"
_PUBLIC = ("id", "prompt_token_ids", "generated_token_ids", "acc_eagle", "acc_ngram")


def _plain_line(record: Record, where: str, notes: Counter[str]) -> Line:
    return convert(record, Line, where, TraceError)


def _public_line(record: Record, where: str, notes: Counter[str]) -> Line:
    for key in record.keys() - set(_PUBLIC):
        notes[f"key '{key}' ignored"] += 1
    for key in _PUBLIC[:3]:
        if record.get(key) is None:
            raise TraceError(f"{where}: '{key}' is missing")
    return Line(
        id=record["id"],
        prompt_token_ids=record["prompt_token_ids"],
        output_token_ids=record["generated_token_ids"],
        neural_accepted=_without_bonus(record, "acc_eagle", where),
        ngram_accepted=_without_bonus(record, "acc_ngram", where),
    )


def _without_bonus(record: Record, key: str, where: str) -> NDArray[np.int16] | None:
    """Accepted counts without the bonus token, null at entry 0; None if there is no list."""
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, dict) or "acc_len" not in value:
        raise TraceError(f"{where}: '{key}' holds no 'acc_len'")
    accepted = as_array(value["acc_len"], np.int16, f"{where}: {key}.acc_len") - np.int16(1)
    accepted[:1] = -1
    return accepted


FORMATS: dict[str, Format] = {
    # The engine of the public recordings drafted 20 tokens at each position, from either source.
    "specdecode-bench": (_public_line, Manifest(drafter="eagle", neural_cap=20, engine="vllm")),
    "jsonl": (_plain_line, None),
}
PATTERNS = {"specdecode-bench": ("combined_*.jsonl", "*.jsonl")}
"""The files that are read of a folder, by the first pattern that any has; else `*.jsonl`."""


def import_trace(
    format: str,
    sources: Paths,
    out: AnyPath,
    *,
    target: str | None = None,
    drafter: str | None = None,
    vocabulary_size: int | None = None,
    tokenizer: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Turn recordings of a format into a trace at `out`, whole or not at all.

    `target` and `drafter` name the model served and its drafter, if the recording does not say;
    `vocabulary_size` is the number of its tokenizer's tokens. Texts need the `tokenizer` itself, by
    its folder or hub id.
    Returns what was imported: `target`, `drafter`, `requests`, `workloads` (the number of
    requests in each), and `notes` (what was left out, and how often). `inspect` says the rest.
    """
    check_word(format, [*FORMATS, TEXTS], "format", TraceError)
    if (tokenizer is None) == (format == TEXTS):
        raise TraceError(f"format '{TEXTS}' needs a tokenizer, and no other takes one")
    files = find_files(paths_of(sources), *PATTERNS.get(format, ("*.jsonl",)))
    line_of, manifest = FORMATS[format] if tokenizer is None else texts.format_of(tokenizer)
    notes: Counter[str] = Counter()

    def requests() -> Iterator[tuple[str, Request]]:
        numbers: Counter[str] = Counter()
        for file, where, record in lines_of(files, progress):
            line = line_of(record, where, notes)
            request = _request_of(line, workload_of(file), numbers, where)
            if format == TEXTS and not len(request.output_tokens):
                notes["empty answers left out"] += 1
            else:
                yield where, request

    rows: Iterable[tuple[str, Request]] = requests()
    if manifest is None:
        rows = known = list(rows)
        manifest = manifest_for([request for _, request in known])
    if drafter is not None and manifest.neural_cap is None:
        raise TraceError(f"drafter '{drafter}': the recording holds no neural counts: leave it out")
    # Only the files' names, because a path may reveal the user.
    names = ", ".join(file.name for file in files[:8])
    more = f" and {len(files) - 8} more" if len(files) > 8 else ""
    changes = {
        "source": f"import {format}: {names}{more}",
        "target": target,
        "drafter": drafter,
        "vocabulary_hash": None if vocabulary_size is None else str(vocabulary_size),
    }
    given = {name: value for name, value in changes.items() if value is not None}
    manifest = structs.replace(manifest, **given)
    workloads: Counter[str] = Counter()
    with whole_trace(Path(out), manifest, force) as writer:
        for where, row in rows:
            writer.add(row, where)
            workloads[row.workload] += 1
            if row.neural_accepted is not None and not row.paired:
                notes[UNPAIRED] += 1
        if not workloads:
            raise TraceError(f"{names}{more}: nothing to import was found there")
    return {
        "trace": str(out),
        "format": format,
        "target": manifest.target,
        "drafter": manifest.drafter,
        "requests": workloads.total(),
        "workloads": dict(workloads),
        "notes": dict(notes),
    }


def _request_of(line: Line, default: str, numbers: Counter[str], where: str) -> Request:
    """The request of a line, whose workload is the default one if it names none.

    `numbers` counts the requests of each workload, by which those without an id are numbered.
    """
    workload = default if line.workload is None else name_of(line.workload, "workload", where)
    number = numbers[workload]
    numbers[workload] += 1
    counts = {
        name: as_array(values, np.int16, f"{where}: {name}")
        for name in ("neural_accepted", "ngram_accepted")
        if (values := getattr(line, name)) is not None
    }
    return Request(
        workload=workload,
        id=str(number) if line.id is None else name_of(line.id, "id", where),
        prompt_tokens=as_array(line.prompt_token_ids, np.int32, f"{where}: prompt_token_ids"),
        output_tokens=as_array(line.output_token_ids, np.int32, f"{where}: output_token_ids"),
        max_tokens=line.max_tokens,
        **counts,
        **_drafts(line, where),
    )


def _drafts(line: Line, where: str) -> dict[str, NDArray[Any]]:
    """Drafted tokens and confidences, as wide as the longest draft of the request."""
    told = [name for name in CONFIDENCES if getattr(line, name) is not None]
    if line.drafted_tokens is None:
        if told:
            raise TraceError(f"{where}: '{told[0]}' without 'drafted_tokens'")
        return {}
    lengths = [len(draft or ()) for draft in line.drafted_tokens]
    width = max([1, *lengths])

    def table(name: str, kind: type[np.number[Any]], padding: int | None) -> NDArray[Any]:
        rows = [row or [] for row in getattr(line, name) or [None] * len(lengths)]
        if name in told and [len(row) for row in rows] != lengths:
            raise TraceError(f"{where}: '{name}' has not one number per drafted token")
        padded = [[*row, *[padding] * (width - len(row))] for row in rows]
        return as_array(padded, kind, f"{where}: {name}")

    arrays = {"drafted_tokens": table("drafted_tokens", np.int32, -1)}
    if told:
        layers = [table(name, np.float32, None) for name in CONFIDENCES]
        arrays["confidences"] = np.stack(layers, axis=-1)
    return arrays
