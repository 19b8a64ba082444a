"""Responses saved from a vLLM server run with `--per-request-spec-decode-metrics detailed`.

A response has `metrics.speculative_decoding.per_step_accepted` and `per_step_drafted` (vLLM 0.32;
chat, completion and generate alike, for requests of one prompt and n = 1). Accepted counts leave
out the bonus token. vLLM leaves two things open:

- Steps without a draft are not listed. So positions are known only if the listed steps account for
  every completion token but the first, which prefill emits; otherwise they are null. (If the last
  listed step exceeds the end, it can hide as many undrafted steps as it has tokens too many.)
- The last step also counts tokens accepted beyond the stop; it is clipped at the output's end.

The files read have a response per line; the workload is the file's name. vLLM's own batch output
wraps each response in `response.body`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import TraceError
from adaspec.trace.importers.lines import (
    ImportedTrace,
    Progress,
    Record,
    as_object,
    lines_of,
    name_of,
    workload_of,
)
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import LoggedStep, as_array

_FLAG = "--per-request-spec-decode-metrics detailed"
Response = tuple[str, str, Record]
"""The workload of a response, its file and line, and the response itself."""


def read_responses(
    files: list[Path], target: str | None, progress: Progress | None
) -> ImportedTrace:
    """The steps in some files of saved responses; all are held in memory."""
    responses = [
        (workload_of(file), where, _unwrapped(record))
        for file, where, record in lines_of(files, progress)
    ]
    if not responses:
        raise TraceError(f"{files[0]}: holds no response")
    model = responses[0][2].get("model")
    for _, where, response in responses:
        if response.get("model") != model:
            raise TraceError(
                f"{where}: is of model {response.get('model')!r}, those before it of {model!r}: "
                "import each model by itself"
            )
    manifest = Manifest(
        kind="logged",
        target=target or (model if isinstance(model, str) else None),
        engine="vllm",
    )
    notes: Counter[str] = Counter()
    return ImportedTrace(manifest, _steps(responses, notes), notes)


def _unwrapped(record: Record) -> Record:
    """The response inside a line of batch output, with `custom_id`, if given, as its id."""
    body = record
    for key in ("response", "body"):
        if isinstance(body.get(key), dict):
            body = body[key]
    return {**body, "id": record["custom_id"]} if record.get("custom_id") else body


def _steps(responses: list[Response], notes: Counter[str]) -> Iterator[tuple[str, LoggedStep]]:
    without = "responses without speculative-decoding metrics skipped"
    for workload, where, response in responses:
        metrics = response.get("metrics")
        speculative = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        if speculative is None:
            notes[without] += 1
            continue
        steps = _request_steps(response, as_object(speculative, where), workload, where)
        if not steps:
            notes["responses without a drafted step skipped"] += 1
        elif steps[0].position is None:
            notes["requests with undrafted steps, positions unknown"] += 1
        for step in steps:
            yield where, step
    if notes[without] == len(responses):
        raise TraceError(
            f"{where}: neither it nor any response before it has metrics.speculative_decoding: "
            f"serve with {_FLAG} (vLLM 0.32 or later) and ask for n = 1"
        )


def _request_steps(
    response: Record, metrics: Record, workload: str, where: str
) -> list[LoggedStep]:
    if metrics.get("per_step_accepted") is None:
        if metrics.get("num_spec_steps"):
            raise TraceError(
                f"{where}: has summary metrics without per_step_accepted: serve with {_FLAG}"
            )
        return []
    accepted, drafted = (
        as_array(metrics.get(key), np.int32, f"{where}: {key}")
        for key in ("per_step_accepted", "per_step_drafted")
    )
    if accepted.ndim != 1 or drafted.ndim != 1:
        raise TraceError(f"{where}: per_step_accepted or per_step_drafted is no plain list")
    if len(accepted) != len(drafted):
        raise TraceError(
            f"{where}: {len(accepted)} entries in per_step_accepted, {len(drafted)} in "
            "per_step_drafted"
        )
    id = response.get("id") or response.get("request_id")
    if id is None:
        raise TraceError(f"{where}: the response has no id")
    prompt_len, output_len = (
        _used(response, key, where) for key in ("prompt_tokens", "completion_tokens")
    )
    positions = _positions(accepted, output_len)
    steps = []
    for step, (draft_len, taken) in enumerate(
        zip(drafted.tolist(), accepted.tolist(), strict=True)
    ):
        position = context = None
        if positions is not None and output_len is not None:
            position = int(positions[step])
            taken = min(taken, output_len - position)
            context = None if prompt_len is None else prompt_len + position
        steps.append(
            LoggedStep(
                workload=workload,
                id=name_of(id, "id", where),
                step=step,
                draft_len=draft_len,
                accepted=taken,
                position=position,
                context_tokens=context,
                output_len=output_len,
            )
        )
    return steps


def _used(response: Record, key: str, where: str) -> int | None:
    usage = response.get("usage")
    value = usage.get(key) if isinstance(usage, dict) else None
    if value is not None and type(value) is not int:
        raise TraceError(f"{where}: usage.{key} is {value!r:.60}, expected a whole number")
    return value if value is not None and value > 0 else None


def _positions(accepted: NDArray[np.int64], output_len: int | None) -> NDArray[np.int64] | None:
    """The position of each step, or None if the steps do not account for the whole output."""
    ends = 1 + np.cumsum(accepted + 1)
    starts = ends - (accepted + 1)
    if output_len is None or not len(ends) or ends[-1] < output_len or starts[-1] >= output_len:
        return None
    return starts
