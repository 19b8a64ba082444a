"""Shared by all importers: finding files, streaming their JSON lines, and what a line says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from adaspec.errors import TraceError
from adaspec.records import parse_json
from adaspec.trace.manifest import Manifest, TokenLimit

Record = dict[str, Any]
Progress = Callable[[int, int], None]
"""A function that is called with the bytes read so far and the bytes in total."""
Layers = (
    Annotated[list[list[Any] | None], Meta(description="a list with a list per position")] | None
)


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a line says of a request, in the words of jsonl; numpy reads its numbers."""

    prompt_token_ids: list[Any]
    output_token_ids: list[Any]
    id: Any = None
    workload: Any = None
    max_tokens: TokenLimit | None = None
    neural_accepted: Any = None
    ngram_accepted: Any = None
    drafted_tokens: Layers = None
    logprob: Layers = None
    margin: Layers = None
    entropy: Layers = None


Format = tuple[Callable[[Record, str, Counter[str]], Line], Manifest | None]
"""What says a line in the words of jsonl, and may note what it ignores; and the manifest, or None
where only all requests together say what the caps are."""


def workload_of(file: Path) -> str:
    """The workload of a file: its name without ending and `combined_`."""
    return file.stem.removeprefix("combined_")


def find_files(sources: Iterable[Path], *patterns: str) -> list[Path]:
    """The files at `sources`; of a folder, those that match the first pattern with any match."""
    files: list[Path] = []
    for source in sources:
        found = [source]
        if source.is_dir():
            found = next(filter(None, (sorted(source.glob(each)) for each in patterns)), [])
        if not found:
            raise TraceError(f"{source}: the folder holds no {' or '.join(patterns)}")
        for file in found:
            if not file.is_file():  # reading a pipe could block
                what = "is not a file" if file.exists() else "there is no such file or folder"
                raise TraceError(f"{file}: {what}: name files, or folders of them")
        files += found
    if not files:
        raise TraceError("nothing to import: name at least one file or folder")
    return files


def lines_of(
    files: list[Path], progress: Progress | None = None
) -> Iterator[tuple[Path, str, Record]]:
    """Every non-empty line as an object, with its file, and with file and line for errors."""
    done, total = 0, sum(file.stat().st_size for file in files)
    for file in files:
        try:
            with file.open("rb") as stream:
                for number, line in enumerate(stream, 1):
                    where = f"{file} line {number}"
                    if line.strip():
                        yield file, where, as_object(parse_json(line, where, TraceError), where)
                    done += len(line)
                    if progress is not None:
                        progress(done, total)
        except OSError as error:
            raise TraceError(f"{file}: cannot be read ({error.strerror})") from error


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
