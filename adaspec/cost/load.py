"""Cost models by name or from a file (strict, versioned JSON); and those that are builtin."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, structs

from adaspec.cost.model import CostModel, line
from adaspec.errors import CostError, check_word, shown
from adaspec.files import AnyPath, new_file
from adaspec.records import convert, read_json, upgraded

TARGET = "meta-llama/Llama-3.1-8B-Instruct"
HARDWARE = "1x NVIDIA H100"

_DRAFTER_SHARE = 0.036
"""The drafter's layer and its input projection have so much of the target's weights."""

_DECIDE_S = 36e-6 + 2 * 14e-6
"""An estimate of a step's kernels with two forwards of the drafter (see `kernels`): they take all
rows at once."""

# vLLM's default sizes of CUDA graphs.
_CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
# Fitted to 88 kinds of step that eval/reports/gpu-h100 timed on V2 (see `cost.fit`).
_INSIDE_TOKENS, _INSIDE_S = (8, 64, 192, 512), (6.68e-3, 7.17e-3, 7.99e-3, 12.21e-3)
_OUTSIDE_TOKENS, _OUTSIDE_S = (513, 2048), (24.47e-3, 44.72e-3)

H100_LLAMA_3_1_8B = CostModel(
    name="h100-llama-3.1-8b",
    tokens=(*_CAPTURED, *_OUTSIDE_TOKENS),
    seconds=(*np.interp(_CAPTURED, _INSIDE_TOKENS, _INSIDE_S).tolist(), *_OUTSIDE_S),
    largest_graph=_CAPTURED[-1],
    context_s=46.5e-9,
    forward_s=0.825e-3,
    forward_per_row_s=8.75e-6,
    outside_graphs_s=3.03e-3,
    draft_prompt_s=_DRAFTER_SHARE * 13.2e-6,
    decide_s=_DECIDE_S,
    target=TARGET,
    hardware=HARDWARE,
)
"""Measured on vLLM's runner V2."""

_PAPER_TOKEN_S = 2.10103129e-5
H100_LLAMA_3_1_8B_PAPER = line(
    "h100-llama-3.1-8b-paper",
    # With 1.2 ms of the host's work in each step.
    5.88590713e-3 + 1.20683946e-3,
    _PAPER_TOKEN_S,
    context_s=3.92645679e-8,
    # The paper's 2.135 ms was fitted with drafts of 3 tokens, so one forward is a third of it.
    forward_s=0.7118e-3,
    forward_context_s=2.37768493e-9,
    draft_prompt_s=_DRAFTER_SHARE * _PAPER_TOKEN_S,
    decide_s=_DECIDE_S,
    target=TARGET,
    hardware=HARDWARE,
)
"""The constants of *Speculative Decoding: Performance or Illusion?*, charged per forward."""

DEFAULT = H100_LLAMA_3_1_8B.name

BUILTIN = {cost.name: cost for cost in (H100_LLAMA_3_1_8B, H100_LLAMA_3_1_8B_PAPER)}
"""The cost models that can be named without a file."""


SCHEMA = 3
KIND = "cost"

MAX_BYTES = 1 << 20

Count = Annotated[int, Meta(ge=0)]
Error = Annotated[float, Meta(ge=0)]


class FitQuality(Struct, frozen=True, forbid_unknown_fields=True):
    """How well a fitted cost model reproduces held-out steps, and which constants are unknown."""

    points: Count
    """The number of measured steps, held-out ones included."""
    held_out_points: Count
    mean_error: Error
    """The mean of |predicted - measured| / measured over the held-out points."""
    median_error: Error
    p95_error: Error
    not_identified: dict[str, str]
    """The terms left at 0, as no point tells them apart -> why, and where their share is."""


def load_cost(name_or_path: AnyPath) -> CostModel:
    """Load the builtin cost model of this name, or else the one in this file."""
    text = os.fspath(name_or_path)
    if text in BUILTIN:
        return BUILTIN[text]
    path = Path(text)
    if path.suffix != ".json" and path.name == text and not os.path.lexists(path):
        check_word(text, BUILTIN, "cost, a builtin or a JSON file,", CostError)
    return read_cost(path)[0]


def read_cost(path: Path) -> tuple[CostModel, FitQuality | None]:
    """The cost model in a file, and the report of its fit if the file has one."""
    try:
        document = read_json(path, CostError, "give the JSON file of a cost model", MAX_BYTES)
    except (FileNotFoundError, ValueError) as error:  # or a name that no file can have
        raise CostError(f"{path}: no such cost file") from error
    fit = document.pop("fit", None) if isinstance(document, dict) else None
    cost = cost_from_document(document, str(path))
    return cost, None if fit is None else convert(fit, FitQuality, f"{path}: fit", CostError)


def cost_document(cost: CostModel) -> dict[str, Any]:
    """The JSON document of a cost model, as in files, without the report of its fit."""
    table = {"tokens": list(cost.tokens), "seconds": list(cost.seconds)}
    return {"schema": SCHEMA, "kind": KIND, **structs.asdict(cost), **table}


def cost_from_document(document: Mapping[str, Any], where: str) -> CostModel:
    """The cost model in a `cost_document`; raises a `CostError` that begins with `where`."""
    values = upgraded(document, "a cost file", SCHEMA, where, CostError)
    if values.pop("kind", None) != KIND:
        raise CostError(f"{where}: not a cost file: kind is {shown(document.get('kind'))}")
    if document["schema"] != values.pop("schema"):
        earlier = f"schema {document['schema']} is of an earlier adaspec"
        raise CostError(f"{where}: {earlier}: measure it again with 'adaspec profile'")
    return convert(values, CostModel, where, CostError)


def save_cost(cost: CostModel, path: Path, fit: FitQuality | None = None) -> None:
    """Write a cost file, all or nothing, from which `load_cost` reads the same model."""
    document = cost_document(cost) | ({} if fit is None else {"fit": structs.asdict(fit)})
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    with new_file(path, CostError) as file:
        file.write(text.encode())
