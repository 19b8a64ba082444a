"""Check the arguments of library functions (paths, texts, numbers) before any work is done."""

from __future__ import annotations

import os
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path
from typing import TypeAlias

from adaspec.errors import AdaspecError, nearest, shown

AnyPath: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = AnyPath | Iterable[AnyPath]
"""One path or several; a string is one path."""


def path_of(value: object, what: str, error: type[AdaspecError]) -> Path:
    """The path given as `what`, which must be a string or a path-like object."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise error(f"{what} is {shown(value)}: give a path, as a text or a Path")
    if not path or "\0" in path:
        raise error(f"{what} is {path!r:.60}, which no path is: name a file or folder")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise error(f"{path!r}: is no path in UTF-8: rename it") from None
    return Path(path)


def paths_of(values: object, what: str, error: type[AdaspecError]) -> list[Path]:
    """The path or paths given as `what`; there may be none."""
    if isinstance(values, str | os.PathLike):
        return [path_of(values, what, error)]
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise error(f"{what} is {shown(values)}: give a path, or a list of paths")
    return [path_of(each, what, error) for each in values]


def texts_of(values: object, what: str, error: type[AdaspecError]) -> tuple[str, ...]:
    """The text or texts given as `what`."""
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise error(f"{what} is {shown(values)}: give a list of texts")
    texts = (values,) if isinstance(values, str) else tuple(values)
    for text in texts:
        if not isinstance(text, str):
            raise error(f"{what} holds {shown(text)}: give texts")
    return texts


def text_of(value: object, what: str, error: type[AdaspecError]) -> str | None:
    """The text given as `what`, or None."""
    if value is not None and not isinstance(value, str):
        raise error(f"{what} is {shown(value)}: give a text, or None")
    return value


def one_of(value: object, known: Iterable[str], what: str, error: type[AdaspecError]) -> str:
    """The word given as `what`, which must be one of the known words."""
    words = list(known)
    if not isinstance(value, str) or value not in words:
        close = nearest(value.lower(), words) if isinstance(value, str) else ""
        raise error(f"{what} is {shown(value)}{close} (known: {', '.join(words)})")
    return value


def whole_number(
    value: object, what: str, least: int, most: int | None, error: type[AdaspecError]
) -> int:
    """The whole number given as `what`, from `least` to `most`."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        reach = f"{least} up" if most is None else f"{least} to {most}"
        raise error(f"{what} is {shown(value)}: give a whole number from {reach}")
    return int(value)  # type: ignore[call-overload]


def numbers_of(
    values: object, what: str, least: int, most: int | None, error: type[AdaspecError]
) -> tuple[int, ...]:
    """The whole number or numbers given as `what`; there must be at least one."""
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes)
    numbers = tuple(values) if is_list else (values,)  # type: ignore[arg-type]
    if not numbers:
        raise error(f"{what} is empty: give at least one whole number")
    return tuple(whole_number(each, what, least, most, error) for each in numbers)


def truth(value: object, what: str, error: type[AdaspecError]) -> bool:
    """The truth value given as `what`."""
    if not isinstance(value, bool):
        raise error(f"{what} is {shown(value)}: give True or False")
    return value
