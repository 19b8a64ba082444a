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
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from adaspec.errors import TraceError
from adaspec.records import convert
from adaspec.trace.importers.lines import Record, name_of
from adaspec.trace.manifest import Manifest, TokenLimit
from adaspec.trace.schema import CONFIDENCES, Request, as_array

Layers = (
    Annotated[list[list[Any] | None], Meta(description="a list with a list per position")] | None
)


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


Format = tuple[Callable[[Record, str, Counter[str]], Line], Manifest | None]
"""What says a line in the words of jsonl, and may note what it ignores; and the manifest, or None
where only all requests together say what the caps are."""

_PUBLIC = ("id", "prompt_token_ids", "generated_token_ids", "acc_eagle", "acc_ngram")
# The engine of the public recordings drafted 20 tokens at each position, from either source.
PUBLIC_MANIFEST = Manifest(drafter="eagle", neural_cap=20, engine="vllm")


def plain_line(record: Record, where: str, notes: Counter[str]) -> Line:
    """A line of jsonl."""
    return convert(record, Line, where, TraceError)


def public_line(record: Record, where: str, notes: Counter[str]) -> Line:
    """A line of the public recordings, in the words of jsonl."""
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


def request_of(line: Line, default: str, numbers: Counter[str], where: str) -> Request:
    """The request of a line, whose workload is the default one if it names none.

    `numbers` counts the requests of each workload, by which those without an id are numbered.
    """
    workload = default if line.workload is None else name_of(line.workload, "workload", where)
    number = numbers[workload]
    numbers[workload] += 1
    arrays = {
        name: as_array(values, kind, f"{where}: {key}")
        for name, key, kind in (
            ("prompt_tokens", "prompt_token_ids", np.int32),
            ("output_tokens", "output_token_ids", np.int32),
            ("neural_accepted", "neural_accepted", np.int16),
            ("ngram_accepted", "ngram_accepted", np.int16),
        )
        if (values := getattr(line, key)) is not None or name.endswith("_tokens")
    }
    return Request(
        workload=workload,
        id=str(number) if line.id is None else name_of(line.id, "id", where),
        max_tokens=line.max_tokens,
        **arrays,
        **_drafts(line, where),
    )


def _drafts(line: Line, where: str) -> dict[str, NDArray[Any]]:
    """Drafted tokens and confidences, as wide as the longest draft of the request."""
    told = {name: rows for name in CONFIDENCES if (rows := getattr(line, name)) is not None}
    if line.drafted_tokens is None:
        if told:
            raise TraceError(f"{where}: '{min(told)}' without 'drafted_tokens'")
        return {}
    drafts = [draft or [] for draft in line.drafted_tokens]
    width = max([1, *map(len, drafts)])
    padded = [[*draft, *[-1] * (width - len(draft))] for draft in drafts]
    drafted = as_array(padded, np.int32, f"{where}: drafted_tokens")
    if not told:
        return {"drafted_tokens": drafted}
    confidences = np.full((*drafted.shape, len(CONFIDENCES)), np.nan, dtype=np.float32)
    for name, rows in told.items():
        if [len(row or []) for row in rows] != [len(draft) for draft in drafts]:
            raise TraceError(f"{where}: '{name}' has not one number per drafted token")
        for index, row in enumerate(rows):
            numbers = [math.nan if value is None else value for value in row or []]
            known = as_array(numbers, np.float32, f"{where}: {name}[{index}]")
            confidences[index, : len(numbers), CONFIDENCES.index(name)] = known
    return {"drafted_tokens": drafted, "confidences": confidences}
