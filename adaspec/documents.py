"""The one way in which JSON, and small files whole, are read: strictly, and without waiting.

Also what makes any value of ours fit for strict JSON.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from adaspec.errors import AdaspecError

DEEPEST = 100
"""Levels of lists and objects: beyond some hundreds Python's own reader gives up."""
MOST_DIGITS = 20
"""Of a whole number: 64 bits, and what a float prints, need no more."""

_TOO_DEEP = "nested too deep"
_ALIKE = bytes.maketrans(b"123456789DE", b"000000000de")
_RARE = (b"0" * (MOST_DIGITS + 1), b"e000", b"e+000", b"\\ud")
"""How every number too large, and every half of a pair of surrogates, looks through `_ALIKE`.

Only where one occurs is each number looked at: that takes longer than all else.
"""


def parse_json(
    text: str | bytes, where: str, error: type[AdaspecError], advice: str = "mend or remove it"
) -> Any:
    """The JSON value in `text`; an `error` that starts with `where` if it is not strictly one.

    Refused is also what readers differ over: a key that comes twice in an object, NaN, infinities,
    numbers that no float holds or of over `MOST_DIGITS` digits, half a pair of surrogates, and more
    than `DEEPEST` levels.
    """
    try:
        return _parsed(text if isinstance(text, bytes) else text.encode())
    except UnicodeDecodeError as fault:
        why = f"not UTF-8 text, byte {fault.start}"
    except UnicodeEncodeError:
        why = "a text with half a pair of surrogates"
    except RecursionError:
        why = _TOO_DEEP
    except ValueError as fault:
        # Python's own refusal of thousands of digits speaks of its settings.
        why = "a number too long" if "int_max_str_digits" in str(fault) else str(fault)
    raise error(f"{where}: broken JSON ({why}): {advice}")


def is_json(value: Any) -> bool:
    """Whether `parse_json` reads it back from JSON as it was."""
    try:
        text = json.dumps(value, allow_nan=False)
        return bool(parse_json(text, "", AdaspecError) == value)
    except (TypeError, ValueError, RecursionError, AdaspecError):
        return False


def json_types(value: Any) -> Any:
    """The value in JSON's own types: numpy as numbers and lists, NaN and infinities as None."""
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
    path: Path,
    error: type[AdaspecError],
    advice: str,
    most: int | None = None,
    through_links: bool = True,
) -> bytes:
    """The bytes of a file, at most `most`; what is no file is an `error`, and so is a larger one.

    A pipe is refused, not waited for. Any other refusal of the operating system is its `OSError`.
    """
    try:
        links = 0 if through_links else os.O_NOFOLLOW
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | links)
    except OSError as fault:
        if not through_links and fault.errno in (errno.ELOOP, errno.EMLINK):
            raise error(f"{path}: is a link: copy the file itself there") from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise error(f"{path}: is not a file: {advice}")
        if most is not None and found.st_size > most:
            raise error(f"{path}: {found.st_size} bytes are more than the {most} that it may be")
        with open(descriptor, "rb", closefd=False) as file:
            # Never more than was found: a reader sets aside what it is asked for.
            return file.read(found.st_size)
    finally:
        os.close(descriptor)


def _parsed(content: bytes) -> Any:
    alike = content.translate(_ALIKE)
    rare = any(each in alike for each in _RARE)
    found = json.loads(
        content.decode("utf-8-sig"),
        object_pairs_hook=_once,
        parse_constant=_refuse_constant,
        parse_int=_whole if rare else None,
        parse_float=_finite if rare else None,
    )
    if rare:
        json.dumps(found, ensure_ascii=False).encode()  # fails on half a pair of surrogates
    if content.count(b"[") + content.count(b"{") > DEEPEST and _is_deeper(found, DEEPEST):
        raise ValueError(_TOO_DEEP)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"{key!r:.60} stands there twice")
        record[key] = value
    return record


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise ValueError("a number too long")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is too large a number")
    return number


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        parts = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for part in parts for item in part if isinstance(item, dict | list)]
        if not level:
            return False
    return True
