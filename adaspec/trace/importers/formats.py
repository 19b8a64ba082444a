"""The formats that can be imported, and the function that turns any of them into a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from adaspec.errors import TraceError, check_word
from adaspec.files import AnyPath
from adaspec.trace.importers import dense, texts
from adaspec.trace.importers.lines import ImportedTrace, Progress, find_files
from adaspec.trace.reader import Paths, paths_of
from adaspec.trace.writer import whole_trace

FORMATS: dict[str, Callable[[list[Path], str | None, Progress | None], ImportedTrace]] = {
    "specdecode-bench": dense.read_public,
    "jsonl": dense.read_jsonl,
}
"""What opens a recording of each format; its rows are read only when needed."""
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
    if tokenizer is None:
        recording = FORMATS[format](files, target, progress)
    else:
        found = texts.load_tokenizer(tokenizer)
        recording = texts.read_texts(files, target, progress, found, tokenizer)
    # Only the files' names, because a path may reveal the user.
    names = ", ".join(file.name for file in files[:8])
    more = f" and {len(files) - 8} more" if len(files) > 8 else ""
    manifest = structs.replace(recording.manifest, source=f"import {format}: {names}{more}")
    if drafter is not None:
        if manifest.neural_cap is None:
            raise TraceError(
                f"a drafter is named ('{drafter}'), but the recording holds no neural counts: "
                "leave it out, or import what the drafter did"
            )
        manifest = structs.replace(manifest, drafter=drafter)
    if vocabulary_size is not None:
        manifest = structs.replace(manifest, vocabulary_hash=str(vocabulary_size))
    workloads: Counter[str] = Counter()
    with whole_trace(Path(out), manifest, force) as writer:
        for where, row in recording.rows:
            writer.add(row, where)
            workloads[row.workload] += 1
            if row.neural_accepted is not None and not row.paired:
                recording.notes[UNPAIRED] += 1
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
        "notes": dict(recording.notes),
    }
