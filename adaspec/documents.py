"""Reads small files and strict JSON, checks records by rules, and makes values fit for JSON."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspec.errors import AdaspecError, nearest, shown
from adaspec.version import __version__


@dataclass(frozen=True, slots=True)
class Rule:
    """A check of one field of a record, and the words by which an error says what it expects."""

    holds: Callable[[Any], object]
    expected: str


Rules = Mapping[str, Rule]
"""The rules of a record, by the names of its fields."""


def whole(least: int, most: int) -> Rule:
    """A rule: a whole number from `least` to `most`."""
    return Rule(
        lambda value: type(value) is int and least <= value <= most,
        f"a whole number from {least} to {most}",
    )


def number(least: float, most: float, expected: str) -> Rule:
    """A rule: a finite number from `least` to `most`."""
    return Rule(
        lambda value: (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and least <= value <= most
            and value < math.inf
        ),
        expected,
    )


def matching(pattern: str, expected: str) -> Rule:
    """A rule: a text, all of which matches a regular expression."""
    compiled = re.compile(pattern)
    return Rule(lambda value: isinstance(value, str) and compiled.fullmatch(value), expected)


def one_of(words: Collection[str]) -> Rule:
    """A rule: one of these words."""
    return Rule(lambda value: value in words, f"one of {', '.join(words)}")


def some_of(words: Collection[str]) -> Rule:
    """A rule: a list of some of these words, each at most once and in this order."""
    return Rule(
        lambda value: (
            isinstance(value, list | tuple) and list(value) == [w for w in words if w in value]
        ),
        f"a list of {', '.join(words)}, in this order",
    )


def or_null(rule: Rule) -> Rule:
    """A rule: null, or a value that `rule` allows."""
    return Rule(lambda value: value is None or rule.holds(value), f"{rule.expected} or null")


TRUTH = Rule(lambda value: isinstance(value, bool), "true or false")
TEXT = Rule(lambda value: isinstance(value, str) and is_json(value), "a text")
OBJECT = Rule(lambda value: isinstance(value, Mapping), "an object")


def check_values(record: object, rules: Rules, where: str, error: type[AdaspecError]) -> None:
    """Raise an `error` that starts with `where` for the first attribute that breaks its rule."""
    for name, rule in rules.items():
        value = getattr(record, name)
        if not rule.holds(value):
            raise error(f"{where}: {name} is {shown(value)}, not {rule.expected}")


def check_keys(
    record: object,
    known: Collection[str],
    where: str,
    error: type[AdaspecError],
    optional: Collection[str] = (),
) -> None:
    """Raise an `error` unless `record` is an object with exactly the known keys.

    Those in `optional` may be missing.
    """
    if not isinstance(record, Mapping):
        raise error(f"{where}: is {shown(record)}, not an object")
    for key in record:
        if key not in known:
            raise error(f"{where}: unknown key {shown(key)}{nearest(str(key), known)}")
    for key in known:
        if key not in record and key not in optional:
            raise error(f"{where}: key '{key}' is missing: add it, or restore the file from a copy")


def upgraded(
    record: object, kind: str, schema: int, where: str, error: type[AdaspecError]
) -> dict[str, Any]:
    """The record as one of this schema; raises `error` if its own is newer or no number.

    `kind` is what errors say the record should be.
    """
    if not isinstance(record, Mapping) or "schema" not in record:
        raise error(f"{where}: not {kind}: it has no 'schema'")
    given = record["schema"]
    if type(given) is not int or given < 1:
        raise error(f"{where}: schema is {shown(given)}, not a version number")
    if given > schema:
        raise error(
            f"{where}: schema {given} is newer than the {schema} that adaspec {__version__} reads: "
            "update adaspec"
        )
    return {**record, "schema": schema}


def parse_json(
    text: str | bytes, where: str, error: type[AdaspecError], advice: str = "mend or remove it"
) -> Any:
    """The JSON value in `text`; raises an `error` that starts with `where` if it is not strict.

    Everything that JSON readers treat differently is refused: a key twice in one object, NaN,
    infinities, numbers too large for a float, and half a pair of surrogates.
    """
    try:
        content = text if isinstance(text, bytes) else text.encode()
        value = json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=_object,
            parse_constant=_finite,
            parse_float=_finite,
            parse_int=_whole,
        )
        if b"\\ud" in content.lower():
            json.dumps(value, ensure_ascii=False).encode()  # fails on half a pair of surrogates
        return value
    except (ValueError, RecursionError) as fault:
        raise error(f"{where}: broken JSON ({fault}): {advice}") from None


def is_json(value: Any) -> bool:
    """True if the value can be written as JSON and read back unchanged by `parse_json`."""
    try:
        return bool(parse_json(json.dumps(value), "", AdaspecError) == value)
    except (TypeError, ValueError, RecursionError, AdaspecError):
        return False


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
    """The bytes of a file; raises `error` if it cannot be read or is over `max_bytes`.

    A missing file stays a `FileNotFoundError`.
    """
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
    """The strict JSON value in a file; raises `error` as `read_file` and `parse_json` do."""
    return parse_json(read_file(path, error, advice, max_bytes), str(path), error, advice)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r:.60} stands there twice")
    return record


def _whole(digits: str) -> int:
    _finite(digits)
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is no finite number")
    return number
