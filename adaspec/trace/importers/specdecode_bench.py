"""The public recordings of github.com/SpecDecode-Bench/simulator (`combined_*.jsonl`).

Each line has `id`, `prompt_token_ids`, `generated_token_ids`, `acc_eagle.acc_len` and
`acc_ngram.acc_len`. `acc_len[i]` belongs to the context prompt + generated[:i] and counts the bonus
token, so accepted = acc_len - 1. Entry 0 has no meaning and becomes null. The lists come from
different runs and are stored as recorded, each with its own length: a request whose EAGLE list is
not as long as its output is not paired. Recorded n-gram counts may exceed the output's end (by up
to 6 tokens after an end-of-text, by up to 19 if the output was cut off at 8,192); EAGLE counts do
not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import TraceError
from adaspec.trace.importers.lines import (
    Progress,
    Record,
    Recording,
    described,
    find_files,
    lines_of,
    name_of,
    workload_of,
)
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import Request, as_array

_CAP = 20
"""Number of tokens that the recording engine drafted at each position, from either source."""
_KEYS = ("id", "prompt_token_ids", "generated_token_ids", "acc_eagle", "acc_ngram")


def read_recording(sources: list[Path], target: str | None, progress: Progress | None) -> Recording:
    """The recording in some `combined_*.jsonl` (or `*.jsonl`) files, or folders of them."""
    files = find_files(sources, "combined_*.jsonl", "*.jsonl")
    manifest = Manifest(
        kind="dense",
        target=target,
        drafter="eagle",
        neural_cap=_CAP,
        engine="vllm",
        source=described("specdecode-bench", files),
    )
    notes: Counter[str] = Counter()
    return Recording(manifest, _requests(files, progress, notes), notes)


def _requests(
    files: list[Path], progress: Progress | None, notes: Counter[str]
) -> Iterator[tuple[str, Request]]:
    for file, where, record in lines_of(files, progress):
        for key in record.keys() - set(_KEYS):
            notes[f"key '{key}' ignored"] += 1
        for key in _KEYS[:3]:
            if record.get(key) is None:
                raise TraceError(f"{where}: '{key}' is missing")
        prompt, output = (as_array(record[key], np.int32, f"{where}: {key}") for key in _KEYS[1:3])
        request = Request(
            workload=workload_of(file),
            id=name_of(record["id"], "id", where),
            prompt_tokens=prompt,
            output_tokens=output,
            neural_accepted=_accepted(record, "acc_eagle", where),
            ngram_accepted=_accepted(record, "acc_ngram", where),
        )
        yield where, request


def _accepted(record: Record, key: str, where: str) -> NDArray[np.int16] | None:
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
