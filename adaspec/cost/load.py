"""Cost models by name or from a file: strict, versioned JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspec.cost.builtin import BUILTIN, DEFAULT, PROTOCOL
from adaspec.cost.engine import ENGINES
from adaspec.cost.model import ASYNC_DECIDING, DECIDING, CostModel
from adaspec.documents import (
    OBJECT,
    TEXT,
    Rule,
    Rules,
    check_keys,
    check_values,
    number,
    or_null,
    read_json,
    upgraded,
    whole,
)
from adaspec.errors import CostError, nearest, shown
from adaspec.files import AnyPath, new_file

SCHEMA = 1
KIND = "cost"

MAX_BYTES = 1 << 20
"""A cost file has a few dozen numbers, so a larger file is something else."""
MAX_CONSTANT_S = 100.0
"""The limit of constants, above that of any real step; a larger number is in another unit."""
MAX_FORWARDS = 1_000
MAX_TOKENS = 10_000_000

_CONSTANTS = (
    "fixed_s",
    "per_token_s",
    "per_kv_s",
    "overhead_s",
    "draft_fixed_s",
    "draft_per_kv_s",
    "draft_prompt_s",
    *DECIDING,
)
_ASYNC = ("async_overhead_s", *ASYNC_DECIDING)
_OPTIONAL = (
    "keep_alive_forwards",
    "captured_sizes",
    "draft_prompt_s",
    *DECIDING,
    *_ASYNC,
    "target",
    "hardware",
)

_SECONDS = number(
    0, MAX_CONSTANT_S, f"seconds from 0 to {MAX_CONSTANT_S:.0f} (is it in another unit?)"
)
_RULES: Rules = {
    "name": Rule(lambda name: TEXT.holds(name) and name.strip(), "a text of at least one letter"),
    **dict.fromkeys(_CONSTANTS, _SECONDS),
    **dict.fromkeys(_ASYNC, or_null(_SECONDS)),
    "keep_alive_forwards": whole(0, MAX_FORWARDS),
    "captured_sizes": Rule(lambda sizes: isinstance(sizes, list | tuple), "a list"),
    "target": or_null(TEXT),
    "hardware": or_null(TEXT),
}


@dataclass(frozen=True, slots=True)
class FitReport:
    """How well a fitted cost model reproduces held-out steps, and which constants are unknown."""

    points: int
    """The number of measured steps, held-out ones included."""
    held_out_points: int
    """The number of measured steps outside the fit; no kind of step is both fitted and held out."""
    mean_error: float
    """The mean of |predicted - measured| / measured over the held-out points."""
    median_error: float
    p95_error: float
    standard_errors_s: dict[str, float]
    """The standard error of each constant that was fitted above 0, in the constant's unit."""
    not_identified: dict[str, str]
    """The constants left at 0, as no point tells them apart -> why, and where their share is."""
    at_zero: list[str]
    """The constants that could be told apart and came out at 0, because a free fit would have made
    them 0 or negative."""
    seed: int


_ERROR = number(0, math.inf, "a finite number from 0 up")
_COUNT = whole(0, 2**63)
_FIT_RULES: Rules = {
    **dict.fromkeys(("points", "held_out_points", "seed"), _COUNT),
    **dict.fromkeys(("mean_error", "median_error", "p95_error"), _ERROR),
    "standard_errors_s": Rule(
        lambda value: isinstance(value, dict) and all(map(_ERROR.holds, value.values())),
        "an object of finite numbers from 0 up",
    ),
    "not_identified": OBJECT,
    "at_zero": Rule(lambda value: isinstance(value, list), "a list"),
}


def load_cost(name_or_path: AnyPath) -> CostModel:
    """Load the builtin cost model of this name, or else the one in this file."""
    text = os.fspath(name_or_path)
    if text in BUILTIN:
        return BUILTIN[text]
    if text == PROTOCOL:
        raise CostError(
            f"cost model '{PROTOCOL}' charges drafts as the public simulator does, which only"
            f" '--protocol {PROTOCOL}' can: use '{DEFAULT}', the same measurements charged per"
            " forward, or a file"
        )
    path = Path(text)
    if path.suffix != ".json" and path.name == text and not os.path.lexists(path):
        known = (*BUILTIN, PROTOCOL)
        raise CostError(
            f"no cost model '{text}'{nearest(text, known)} (builtin: {', '.join(known)};"
            " or give a JSON file)"
        )
    return read_cost(path)[0]


def read_cost(path: Path) -> tuple[CostModel, FitReport | None]:
    """The cost model in a file, and the report of its fit if the file has one."""
    try:
        document = read_json(path, CostError, "give the JSON file of a cost model", MAX_BYTES)
    except (FileNotFoundError, ValueError) as error:  # or a name that no file can have
        raise CostError(f"{path}: no such cost file") from error
    if not isinstance(document, dict):
        raise CostError(f"{path}: a cost file holds one JSON object, not {shown(document)}")
    fit = document.pop("fit", None)
    cost = cost_from_document(document, str(path))
    if fit is None:
        return cost, None
    where = f"{path}: fit"
    check_keys(fit, _FIT_RULES, where, CostError)
    report = FitReport(**fit)
    check_values(report, _FIT_RULES, where, CostError)
    return cost, report


def cost_document(cost: CostModel) -> dict[str, Any]:
    """The JSON document of a cost model, as in files, without the report of its fit."""
    document = {"schema": SCHEMA, "kind": KIND, **dataclasses.asdict(cost)}
    for name in _ASYNC:
        if document[name] is None:
            del document[name]
    return document | {"captured_sizes": list(cost.captured_sizes)}


def cost_from_document(document: Mapping[str, Any], where: str) -> CostModel:
    """The cost model in a `cost_document`; raises a `CostError` that begins with `where`."""
    if document.get("kind") != KIND:
        raise CostError(
            f"{where}: not a cost file: kind is {shown(document.get('kind'))}, not '{KIND}'"
        )
    values = upgraded(document, "a cost file", SCHEMA, where, CostError)
    check_keys(values, ("schema", "kind", *_RULES), where, CostError, _OPTIONAL)
    cost = CostModel(**{name: values[name] for name in _RULES if name in values})
    check_cost(cost, where)
    seconds: dict[str, Any] = {name: float(getattr(cost, name)) for name in _CONSTANTS}
    for name in _ASYNC:
        if getattr(cost, name) is not None:
            seconds[name] = float(getattr(cost, name))
    return dataclasses.replace(cost, captured_sizes=tuple(cost.captured_sizes), **seconds)


def check_cost(cost: CostModel, where: str) -> None:
    """Raise a `CostError` that begins with `where` for the first field that cannot be right."""
    check_values(cost, _RULES, where, CostError)
    for index, (smaller, size) in enumerate(itertools.pairwise((0, *cost.captured_sizes))):
        if type(size) is not int or not smaller < size <= MAX_TOKENS:
            raise CostError(
                f"{where}: captured_sizes[{index}] is {shown(size)} after {smaller}: give whole "
                f"numbers that increase, up to {MAX_TOKENS}"
            )
    for engine in ENGINES:
        if cost.fixed_s + cost.under(engine).overhead_s + cost.per_token_s <= 0:
            raise CostError(
                f"{where}: a step would cost nothing (fixed_s, overhead_s and per_token_s are 0)"
            )


def save_cost(cost: CostModel, path: Path, fit: FitReport | None = None) -> None:
    """Write a cost file, all or nothing, from which `load_cost` reads the same model."""
    check_cost(cost, f"cost model '{cost.name}'")
    document = cost_document(cost)
    if fit is not None:
        document["fit"] = dataclasses.asdict(fit)
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    if not path.parent.is_dir():
        raise CostError(f"{path}: no such folder to write to")
    if path.is_dir():
        raise CostError(f"{path}: a folder; a cost model is written to a file")
    with new_file(path, CostError) as file:
        file.write(text.encode())
