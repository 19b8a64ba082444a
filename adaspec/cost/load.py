"""Cost models by name or from a file: strict, versioned JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from adaspec.cost.builtin import BUILTIN
from adaspec.cost.model import CostModel
from adaspec.errors import CostError, check_word, shown
from adaspec.files import AnyPath, new_file
from adaspec.records import convert, read_json, upgraded

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
