"""Other programs' JSON: files found, lines streamed, every value named by where it stood."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import TraceError

Record = dict[str, Any]
Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes in all."""


def find_files(sources: Iterable[str | Path], patterns: Sequence[str]) -> list[Path]:
    """The files at `sources`; of a folder those of the first pattern that matches any."""
    files: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            matches = next(filter(None, (sorted(source.glob(p)) for p in patterns)), None)
            if not matches:
                raise TraceError(f"{source}: the folder holds no {' or '.join(patterns)}")
            files += matches
        elif source.exists():
            files.append(source)
        else:
            raise TraceError(f"{source}: there is no such file or folder")
    if not files:
        raise TraceError("nothing to import: name at least one file or folder")
    return files


class Lines:
    """The JSON objects of some files, one a line, each with where it stands; reports progress."""

    def __init__(self, files: Sequence[Path], progress: Progress | None = None, passes: int = 1):
        self.files = list(files)
        self._progress = progress
        self._total = passes * sum(file.stat().st_size for file in self.files)
        self._done = 0

    def of(self, file: Path) -> Iterator[tuple[str, Record]]:
        """Every non-empty line of `file` as an object; a `TraceError` at the first that is none."""
        try:
            with file.open("rb") as stream:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        where = f"{file} line {number}"
                        yield where, parse_object(line, where)
                    self.advance(len(line))
        except OSError as error:
            raise TraceError(f"{file}: cannot be read ({error.strerror})") from error

    def advance(self, size: int) -> None:
        """Note that `size` more bytes were read."""
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)


def parse(text: bytes, where: str) -> Any:
    """The JSON value in `text`; NaN and infinities are refused, as JSON does."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError alike
        raise TraceError(f"{where}: broken JSON ({error}): mend or remove it") from None


def parse_object(text: bytes, where: str) -> Record:
    """The JSON object in `text`."""
    record = parse(text, where)
    if not isinstance(record, dict):
        raise TraceError(f"{where}: is a {type(record).__name__}, expected an object")
    return record


def required(record: Record, key: str, where: str) -> Any:
    """`record[key]`, or an error that says it is missing."""
    if record.get(key) is None:
        raise TraceError(f"{where}: '{key}' is missing")
    return record[key]


def tokens(values: Any, key: str, where: str) -> NDArray[np.int32]:
    """A list of token ids as an array; whether they are sound is not checked here."""
    return whole_numbers(values, key, where).astype(np.int32)


def counts(values: Any, key: str, where: str) -> NDArray[np.int16]:
    """A list of counts as an array, a null first entry as -1."""
    if isinstance(values, list) and values and values[0] is None:
        values = [-1, *values[1:]]
    found = whole_numbers(values, key, where)
    if len(found) and (found.min() < -1 or found.max() > np.iinfo(np.int16).max):
        at = int(np.argmax((found < -1) | (found > np.iinfo(np.int16).max)))
        raise TraceError(f"{where}: {key}[{at}]={found[at]} is not a count")
    return found.astype(np.int16)


def whole_numbers(values: Any, key: str, where: str) -> NDArray[np.int64]:
    """A list of whole numbers that fit 32 bits."""
    if not isinstance(values, list):
        raise TraceError(f"{where}: '{key}' is a {type(values).__name__}, expected a list")
    if not values:
        return np.empty(0, np.int64)
    for at, value in enumerate(values):
        if type(value) is not int or not -(2**31) <= value < 2**31:
            raise TraceError(f"{where}: {key}[{at}]={value!r} is not a whole number of 32 bits")
    return np.array(values, dtype=np.int64)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
