"""Cost models by name or from a file: strict, versioned JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaspec.arguments import AnyPath, path_of
from adaspec.cost.builtin import BUILTIN, DEFAULT, PROTOCOL
from adaspec.cost.check import MEASURED, SECONDS, check_cost
from adaspec.cost.model import CostModel
from adaspec.cost.report import FitReport
from adaspec.documents import parse_json, read_file
from adaspec.errors import CostError, nearest
from adaspec.places import STAGED, Place, beside, flush, look
from adaspec.staging import publish

SCHEMA = 1
KIND = "cost"

LARGEST_BYTES = 1 << 20
"""A cost file holds a few dozen numbers; whatever is larger is something else."""

_REQUIRED = ("schema", "kind", "name", *SECONDS)
_OPTIONAL = ("keep_alive_forwards", "captured_sizes", "draft_prompt_s", "target", "hardware")
_KNOWN = (*_REQUIRED, *_OPTIONAL)


def load_cost(name_or_path: AnyPath) -> CostModel:
    """The builtin cost model of that name, or else the one in that file."""
    text = os.fspath(path_of(name_or_path, "the cost model", CostError))
    if text in BUILTIN:
        return BUILTIN[text]
    if text == PROTOCOL:
        raise CostError(
            f"cost model '{PROTOCOL}' charges drafts as the public simulator does, which only"
            f" '--protocol {PROTOCOL}' can: use '{DEFAULT}', the same measurements charged per"
            " forward, or a file"
        )
    path = Path(text)
    if not _exists(path) and path.suffix != ".json" and path.name == text:
        known = (*BUILTIN, PROTOCOL)
        raise CostError(
            f"no cost model '{text}'{nearest(text, known)} (builtin: {', '.join(known)};"
            " or give a JSON file)"
        )
    return read_cost(path)[0]


def read_cost(path: Path) -> tuple[CostModel, FitReport | None]:
    """The cost model in a file and, where the file says it, how well the model fitted."""
    if not _exists(path):
        raise CostError(f"{path}: no such cost file")
    where = str(path)
    try:
        content = read_file(path, CostError, "a cost model is one JSON file", LARGEST_BYTES)
    except OSError as error:
        raise CostError(f"{path}: cannot be read ({error.strerror})") from error
    document = parse_json(content, where, CostError)
    if not isinstance(document, dict):
        raise CostError(f"{where}: a cost file holds one JSON object, not {document!r:.40}")
    fit = document.pop("fit", None)
    cost = cost_from_document(document, where)
    return cost, None if fit is None else FitReport.from_document(fit, f"{where}: fit")


def cost_document(cost: CostModel) -> dict[str, Any]:
    """A cost model as files hold it, what its fit says left out."""
    document = {"schema": SCHEMA, "kind": KIND, **dataclasses.asdict(cost)}
    return document | {"captured_sizes": list(cost.captured_sizes)}


def cost_from_document(document: Mapping[str, Any], where: str) -> CostModel:
    """The cost model that `cost_document` made, or a `CostError` that begins with `where`."""
    _check_schema(document, where)
    _check_keys(document, _REQUIRED, _KNOWN, where)
    name = _text(document, "name", where)
    if name is None or not name.strip():
        raise CostError(f"{where}: name={name!r} must be a text of at least one letter")
    sizes = document.get("captured_sizes", [])
    if not isinstance(sizes, list):
        raise CostError(f"{where}: captured_sizes={sizes!r} must be a list of whole numbers")
    cost = CostModel(
        name=name,
        **{constant: document[constant] for constant in SECONDS},
        keep_alive_forwards=document.get("keep_alive_forwards", 1),
        captured_sizes=tuple(sizes),
        draft_prompt_s=document.get("draft_prompt_s", 0.0),
        target=_text(document, "target", where),
        hardware=_text(document, "hardware", where),
    )
    check_cost(cost, where)
    seconds: dict[str, Any] = {name: float(getattr(cost, name)) for name in MEASURED}
    return dataclasses.replace(cost, **seconds)


def save_cost(cost: CostModel, path: Path | Place, fit: FitReport | None = None) -> None:
    """Write a cost file that `load_cost` reads back to the very same model, whole or not at all.

    A place that was checked before is written to only as it was then.
    """
    place = path if isinstance(path, Place) else look(path)
    path = place.path
    check_cost(cost, f"cost model '{cost.name}'")
    document = cost_document(cost)
    if fit is not None:
        document["fit"] = fit.document()
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    if not path.parent.is_dir():
        raise CostError(f"{path}: no such folder to write to")
    if path.is_dir():
        raise CostError(f"{path}: a folder; a cost model is written to a file")
    # A reader must never see half a file, so it appears under its name only when complete.
    staged = beside(place.final, STAGED)
    try:
        staged.write_text(text, encoding="utf-8")
        flush(staged)
        publish(staged, place, CostError)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have
        return False


def _check_schema(document: Mapping[str, Any], where: str) -> None:
    """Refuse other kinds of file, and newer schemas, before complaining of their keys."""
    kind = document.get("kind")
    if kind != KIND:
        raise CostError(f"{where}: kind={kind!r} is not '{KIND}': not a cost file")
    schema = document.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise CostError(f"{where}: schema={schema!r} must be {SCHEMA}")
    if schema > SCHEMA:
        raise CostError(
            f"{where}: schema {schema} is newer than {SCHEMA}, the newest this adaspec reads:"
            " install a newer adaspec"
        )


def _check_keys(
    document: Mapping[str, Any], required: tuple[str, ...], known: tuple[str, ...], where: str
) -> None:
    for key in document:
        if key not in known:
            raise CostError(f"{where}: unknown key '{key}'{nearest(key, known)}")
    for key in required:
        if key not in document:
            raise CostError(f"{where}: '{key}' is missing")


def _text(document: Mapping[str, Any], key: str, where: str) -> str | None:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise CostError(f"{where}: {key}={value!r} must be a text")
    return value
