"""The formats that can be imported, and the function that turns any of them into a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import structs

from adaspec.errors import TraceError, check_word
from adaspec.files import AnyPath
from adaspec.trace.importers import dense, texts
from adaspec.trace.importers.dense import Format
from adaspec.trace.importers.lines import Progress, find_files, lines_of, workload_of
from adaspec.trace.manifest import manifest_for
from adaspec.trace.reader import Paths, paths_of
from adaspec.trace.schema import Request
from adaspec.trace.writer import whole_trace

FORMATS: dict[str, Format] = {
    "specdecode-bench": (dense.public_line, dense.PUBLIC_MANIFEST),
    "jsonl": (dense.plain_line, None),
}
PATTERNS = {"specdecode-bench": ("combined_*.jsonl", "*.jsonl")}
"""The files that are read of a folder, by the first pattern that any has; else `*.jsonl`."""
TEXTS = "texts"
"""The format that needs a tokenizer."""
UNPAIRED = "neural counts of another length than their output, and so not paired with it"
"""The note of such requests."""


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
            request = dense.request_of(line, workload_of(file), numbers, where)
            if format == TEXTS and not len(request.output_tokens):
                notes["empty answers left out"] += 1
            else:
                yield where, request

    rows: Iterable[tuple[str, Request]] = requests()
    if manifest is None:
        rows = known = list(rows)
        manifest = manifest_for([request for _, request in known])
    # Only the files' names, because a path may reveal the user.
    names = ", ".join(file.name for file in files[:8])
    more = f" and {len(files) - 8} more" if len(files) > 8 else ""
    changes = {"source": f"import {format}: {names}{more}", "target": target, "drafter": drafter}
    if drafter is not None and manifest.neural_cap is None:
        raise TraceError(
            f"a drafter is named ('{drafter}'), but the recording holds no neural counts: "
            "leave it out, or import what the drafter did"
        )
    if vocabulary_size is not None:
        changes["vocabulary_hash"] = str(vocabulary_size)
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
            raise TraceError(
                f"{', '.join(map(str, files[:8]))}{more}: nothing to import was found there"
            )
    return {
        "trace": str(out),
        "format": format,
        "target": manifest.target,
        "drafter": manifest.drafter,
        "requests": workloads.total(),
        "workloads": dict(workloads),
        "notes": dict(notes),
    }
