"""Shared by all importers: finding files, streaming their JSON lines, and checking values."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from adaspec.documents import parse_json
from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import LoggedStep, Request

Record = dict[str, Any]
Progress = Callable[[int, int], None]
"""A function that is called with the bytes read so far and the bytes in total."""

# The numbers of pipes that a shell opens change every time, so they make no workload name.
_PIPE_FOLDERS = (Path("/dev/fd"), Path("/proc/self/fd"))


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording of another program, as a manifest and rows."""

    manifest: Manifest
    rows: Iterator[tuple[str, Request | LoggedStep]]
    """The rows, each with its file and line, for error messages."""
    notes: Counter[str] = field(default_factory=Counter)
    """Counts of what was left out, by description; filled while `rows` is consumed."""


def workload_of(file: Path) -> str:
    """The workload of a file: its name without ending and `combined_`, or `stdin` for a pipe."""
    return "stdin" if file.parent in _PIPE_FOLDERS else file.stem.removeprefix("combined_")


def described(importer: str, files: list[Path]) -> str:
    """The manifest's `source`: only file names, because a path may reveal the user."""
    names = ", ".join(file.name for file in files[:8])
    return f"import {importer}: {names}" + (f" and {len(files) - 8} more" if len(files) > 8 else "")


def find_files(sources: Iterable[str | Path], patterns: Sequence[str]) -> list[Path]:
    """The files at `sources`; of a folder, those that match the first pattern with any match.

    A pipe must be named directly. One inside a folder is refused, as reading it may block.
    """
    files: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            matches = next(filter(None, (sorted(source.glob(p)) for p in patterns)), None)
            if not matches:
                raise TraceError(f"{source}: the folder holds no {' or '.join(patterns)}")
            for file in matches:
                if not file.is_file():
                    raise TraceError(f"{file}: is not a file: move it away, or name the files")
            files += matches
        elif source.is_file() or source.is_fifo():
            files.append(source)
        elif source.exists():
            raise TraceError(f"{source}: is a device, neither a file nor a pipe: name a file")
        else:
            raise TraceError(f"{source}: there is no such file or folder")
    if not files:
        raise TraceError("nothing to import: name at least one file or folder")
    return files


class Lines:
    """The JSON objects of some files, one per line, each with its file and line number.

    Reports progress. A pipe can be read only once, so its lines are copied to a temporary file if
    there are several passes.
    """

    def __init__(self, files: Sequence[Path], progress: Progress | None = None, passes: int = 1):
        self.files = list(files)
        self._progress = progress
        self._copies: dict[Path, BinaryIO | None] = {
            file: None for file in files if passes > 1 and file.is_fifo()
        }
        self._total = passes * sum(file.stat().st_size for file in self.files)
        self._done = 0

    def __iter__(self) -> Iterator[tuple[Path, str, Record]]:
        """Every object of all files, with its file, and with file and line for error messages."""
        return ((file, where, record) for file in self.files for where, record in self.of(file))

    def of(self, file: Path) -> Iterator[tuple[str, Record]]:
        """Every non-empty line of `file` as an object; a line that is none is a `TraceError`."""
        try:
            with self._opened(file) as stream:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        where = f"{file} line {number}"
                        yield where, as_object(parse_json(line, where, TraceError), where)
                    self.advance(len(line))
        except OSError as error:
            raise TraceError(f"{file}: cannot be read ({error.strerror})") from error

    @contextmanager
    def _opened(self, file: Path) -> Iterator[BinaryIO]:
        if file not in self._copies:
            with file.open("rb") as stream:
                yield stream
            return
        copy = self._copies[file]
        if copy is None:
            copy = self._copies[file] = tempfile.TemporaryFile()  # noqa: SIM115
            with file.open("rb") as stream:
                shutil.copyfileobj(stream, copy)
        copy.seek(0)
        yield copy

    def advance(self, size: int) -> None:
        """Report that `size` more bytes were read."""
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)


def as_object(value: Any, where: str) -> Record:
    """A JSON object; any other JSON value is refused."""
    if not isinstance(value, dict):
        raise TraceError(f"{where}: is a {type(value).__name__}, expected an object")
    return value


def name_of(value: Any, key: str, where: str) -> str:
    """The name of a workload or request, which may be given as a number."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise TraceError(f"{where}: '{key}' is {value!r:.60}, expected a text or a number")
    return str(value)


def counts(values: Any, key: str, where: str) -> NDArray[np.int16]:
    """A list of counts as an array; a null first entry becomes -1."""
    if isinstance(values, list) and values and values[0] is None:
        values = [-1, *values[1:]]
    numbers = whole_numbers(values, key, where)
    outside = (numbers < -1) | (numbers > np.iinfo(np.int16).max)
    if outside.any():
        index = int(np.argmax(outside))
        raise TraceError(f"{where}: {key}[{index}]={numbers[index]} is not a count")
    return numbers.astype(np.int16)


def whole_numbers(values: Any, key: str, where: str) -> NDArray[np.int64]:
    """A list of whole numbers of 32 bits as an array; anything else is refused."""
    if not isinstance(values, list):
        raise TraceError(f"{where}: '{key}' is a {type(values).__name__}, expected a list")
    for index, value in enumerate(values):
        if type(value) is not int or not -(2**31) <= value < 2**31:
            raise TraceError(
                f"{where}: {key}[{index}]={value!r:.60} is not a whole number of 32 bits"
            )
    return np.array(values, dtype=np.int64)
