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

from adaspec.cost.builtin import BUILTIN
from adaspec.cost.model import CostModel
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

SCHEMA = 3
KIND = "cost"

MAX_BYTES = 1 << 20
"""A cost file has a few dozen numbers, so a larger file is something else."""
MAX_CONSTANT_S = 100.0
"""The limit of times, above that of any real step; a larger number is in another unit."""
MAX_TOKENS = 10_000_000

_TIMES = tuple(each.name for each in dataclasses.fields(CostModel) if each.name.endswith("_s"))
_OPTIONAL = ("largest_graph", *_TIMES, "target", "hardware")

_SECONDS = number(
    0, MAX_CONSTANT_S, f"seconds from 0 to {MAX_CONSTANT_S:.0f} (is it in another unit?)"
)
_LIST = Rule(lambda values: isinstance(values, list | tuple), "a list")
_RULES: Rules = {
    "name": Rule(lambda name: TEXT.holds(name) and name.strip(), "a text of at least one letter"),
    "tokens": _LIST,
    "seconds": _LIST,
    "largest_graph": whole(0, MAX_TOKENS),
    **dict.fromkeys(_TIMES, _SECONDS),
    "target": or_null(TEXT),
    "hardware": or_null(TEXT),
}


@dataclass(frozen=True, slots=True)
class FitQuality:
    """How well a fitted cost model reproduces held-out steps, and which constants are unknown."""

    points: int
    """The number of measured steps, held-out ones included."""
    held_out_points: int
    """The number of measured steps outside the fit; no kind of step is both fitted and held out."""
    mean_error: float
    """The mean of |predicted - measured| / measured over the held-out points."""
    median_error: float
    p95_error: float
    not_identified: dict[str, str]
    """The terms left at 0, as no point tells them apart -> why, and where their share is."""


_ERROR = number(0, math.inf, "a finite number from 0 up")
_COUNT = whole(0, 2**63)
_FIT_RULES: Rules = {
    **dict.fromkeys(("points", "held_out_points"), _COUNT),
    **dict.fromkeys(("mean_error", "median_error", "p95_error"), _ERROR),
    "not_identified": OBJECT,
}


def load_cost(name_or_path: AnyPath) -> CostModel:
    """Load the builtin cost model of this name, or else the one in this file."""
    text = os.fspath(name_or_path)
    if text in BUILTIN:
        return BUILTIN[text]
    path = Path(text)
    if path.suffix != ".json" and path.name == text and not os.path.lexists(path):
        raise CostError(
            f"no cost model '{text}'{nearest(text, BUILTIN)} (builtin: {', '.join(BUILTIN)};"
            " or give a JSON file)"
        )
    return read_cost(path)[0]


def read_cost(path: Path) -> tuple[CostModel, FitQuality | None]:
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
    report = FitQuality(**fit)
    check_values(report, _FIT_RULES, where, CostError)
    return cost, report


def cost_document(cost: CostModel) -> dict[str, Any]:
    """The JSON document of a cost model, as in files, without the report of its fit."""
    fields = dataclasses.asdict(cost)
    fields |= {"tokens": list(cost.tokens), "seconds": list(cost.seconds)}
    return {"schema": SCHEMA, "kind": KIND, **fields}


def cost_from_document(document: Mapping[str, Any], where: str) -> CostModel:
    """The cost model in a `cost_document`; raises a `CostError` that begins with `where`."""
    if document.get("kind") != KIND:
        raise CostError(
            f"{where}: not a cost file: kind is {shown(document.get('kind'))}, not '{KIND}'"
        )
    values = upgraded(document, "a cost file", SCHEMA, where, CostError)
    if document["schema"] != SCHEMA:
        raise CostError(
            f"{where}: schema {document['schema']} is of an earlier adaspec, whose steps had other "
            "times: measure it again with 'adaspec profile'"
        )
    check_keys(values, ("schema", "kind", *_RULES), where, CostError, _OPTIONAL)
    cost = CostModel(**{name: values[name] for name in _RULES if name in values})
    check_cost(cost, where)
    times: dict[str, Any] = {name: float(getattr(cost, name)) for name in _TIMES}
    seconds = tuple(float(each) for each in cost.seconds)
    return dataclasses.replace(cost, tokens=tuple(cost.tokens), seconds=seconds, **times)


def check_cost(cost: CostModel, where: str) -> None:
    """Raise a `CostError` that begins with `where` for the first field that cannot be right."""
    check_values(cost, _RULES, where, CostError)
    if len(cost.tokens) != len(cost.seconds) or len(cost.tokens) < 2:
        raise CostError(
            f"{where}: {len(cost.tokens)} tokens and {len(cost.seconds)} seconds: give a table of "
            "two steps or more, with the seconds of each"
        )
    for index, (smaller, size) in enumerate(itertools.pairwise((0, *cost.tokens))):
        if type(size) is not int or not smaller < size <= MAX_TOKENS:
            raise CostError(
                f"{where}: tokens[{index}] is {shown(size)} after {smaller}: give whole numbers "
                f"that increase, up to {MAX_TOKENS}"
            )
    for index, (less, taken) in enumerate(itertools.pairwise((0.0, *cost.seconds))):
        if not _SECONDS.holds(taken) or taken < less or taken == 0:
            raise CostError(
                f"{where}: seconds[{index}] is {shown(taken)} after {less}: more tokens take no "
                f"less, from over 0 to {MAX_CONSTANT_S:.0f} seconds"
            )
    if cost.largest_graph and cost.largest_graph not in cost.tokens:
        raise CostError(f"{where}: largest_graph {cost.largest_graph} is none of its tokens")
    if cost.largest_graph + 1 not in cost.tokens[:-1]:
        raise CostError(
            f"{where}: no step of {cost.largest_graph + 1} tokens, the first outside the graphs, "
            "or none of more: give both"
        )


def save_cost(cost: CostModel, path: Path, fit: FitQuality | None = None) -> None:
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
