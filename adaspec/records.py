"""Strict records: JSON read as msgspec's structs, and what is wrong with it said in one line."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from adaspec.errors import AdaspecError, nearest, shown
from adaspec.version import __version__

Text = Annotated[
    str,
    Meta(
        pattern=r"^(?!\s*\Z)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,4000}\Z",
        description="a text of one line, of at most 4,000 characters",
    ),
]

T = TypeVar("T", bound=msgspec.Struct)


def convert(record: object, kind: type[T], where: str, error: type[AdaspecError]) -> T:
    """The struct that a record says; raises an `error` that starts with `where` if it says none.

    Keys that the struct does not have are all named, of wrong values the first.
    """
    try:
        return msgspec.convert(record, kind, str_keys=True)
    except (msgspec.ValidationError, error) as fault:
        raise error(f"{where}: {_problem(str(fault), record, kind)}") from None


def check(record: object, where: str, error: type[AdaspecError]) -> None:
    """Raise an `error` for the first field of a struct or dataclass that is not of its type."""
    for name, type_ in get_type_hints(type(record), include_extras=True).items():
        value = getattr(record, name)
        try:
            msgspec.convert(value, type_, from_attributes=True)
        except msgspec.ValidationError as fault:
            raise error(f"{where}: {_misfit(name, value, type_, str(fault))}") from None


def fits(value: object, type_: Any) -> bool:
    """Whether a value is of an annotated type."""
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True


def _problem(fault: str, record: object, kind: type[msgspec.Struct]) -> str:
    """Why a record is no struct of this kind, as msgspec found it."""
    if not isinstance(record, Mapping):
        return f"is {shown(record)}, not an object"
    types = get_type_hints(kind, include_extras=True)
    unknown = [key for key in record if key not in types]
    if unknown:
        known = f" (known: {', '.join(types)})"
        said = (f"unknown key {shown(key)}{nearest(str(key), types) or known}" for key in unknown)
        return "; ".join(said)
    for each in msgspec.structs.fields(kind):
        if each.required and each.name not in record:
            return f"key '{each.name}' is missing: add it, or restore the file from a copy"
    found = re.search(r"`\$\.(\w+)", fault)
    return _misfit(found[1], record[found[1]], types[found[1]], fault) if found else fault


def _misfit(name: str, value: Any, type_: Any, fault: str) -> str:
    """What a field is, and what its type expects."""
    problem, _, place = fault.partition(" - at ")
    for index in re.findall(r"\[(\d+)\]", place):
        name, value = f"{name}[{index}]", value[int(index)]
    parts = list(_parts(type_))
    words = [part for part in parts if isinstance(part, str)]
    if words:
        close = nearest(value, words) if isinstance(value, str) else ""
        return f"{name} is {shown(value)}{close} (known: {', '.join(words)})"
    told = (part.description for part in parts if isinstance(part, Meta) and part.description)
    plain = problem.removeprefix("Expected ").partition(",")[0].replace("`", "")
    return f"{name} is {shown(value)}: expected {next(told, plain)}"


def _parts(type_: Any) -> Iterator[Any]:
    """What a type is made of: its words and constraints among them."""
    yield type_
    for part in get_args(type_):
        yield from _parts(part)


def upgraded(
    record: object, kind: str, schema: int, where: str, error: type[AdaspecError]
) -> dict[str, Any]:
    """The record, which should be `kind`, as one of this schema; a newer one raises `error`."""
    if not isinstance(record, Mapping) or "schema" not in record:
        raise error(f"{where}: not {kind}: it has no 'schema'")
    given = record["schema"]
    if type(given) is not int or given < 1:
        raise error(f"{where}: schema is {shown(given)}, not a version number")
    if given > schema:
        read = f"the {schema} that adaspec {__version__} reads"
        raise error(f"{where}: schema {given} is newer than {read}: update adaspec")
    return {**record, "schema": schema}


def parse_json(
    text: str | bytes, where: str, error: type[AdaspecError], advice: str = "mend or remove it"
) -> Any:
    """The JSON value in `text`; raises an `error` that starts with `where` if there is none."""
    try:
        content = text.encode() if isinstance(text, str) else text
        return msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as fault:
        raise error(f"{where}: broken JSON ({fault}): {advice}") from None


def json_types(value: Any) -> Any:
    """The value in JSON's own types: numpy's are converted, NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(key): json_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_types(item) for item in value]
    if hasattr(value, "tolist"):
        return json_types(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_file(
    path: Path, error: type[AdaspecError], advice: str, max_bytes: int | None = None
) -> bytes:
    """The bytes of a file; raises `error` if it cannot be read, unless as none is there."""
    try:
        size = path.stat().st_size
        if not path.is_file():  # reading a pipe could block
            raise error(f"{path}: is not a file: {advice}")
        if max_bytes is not None and size > max_bytes:
            raise error(f"{path}: {size} bytes are more than the {max_bytes} that it may be")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as fault:
        raise error(f"{path}: cannot be read ({fault.strerror}): {advice}") from fault


def read_json(
    path: Path, error: type[AdaspecError], advice: str, max_bytes: int | None = None
) -> Any:
    """The JSON value in a file; raises `error` as `read_file` and `parse_json` do."""
    return parse_json(read_file(path, error, advice, max_bytes), str(path), error, advice)
