"""What an importer hands over: a manifest, a stream of rows, and what was met on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import LoggedStep, Request

_NUMBERED = (Path("/dev/fd"), Path("/proc/self/fd"))


@dataclass(frozen=True, slots=True)
class Recording:
    """Somebody's recording, about to become a trace; `rows` yields each row with where it stood."""

    manifest: Manifest
    rows: Iterator[tuple[str, Request | LoggedStep]]
    notes: Counter[str] = field(default_factory=Counter)
    """Filled while `rows` is consumed: how often something was left out, by what it was."""


def workload_of(file: Path) -> str:
    """The workload a file holds: its name without ending and without `combined_`.

    A shell numbers the pipes that it hands over, differently every time: they are standard input.
    """
    if file.parent in _NUMBERED:
        return "stdin"
    return file.stem.removeprefix("combined_")


def described(importer: str, files: list[Path]) -> str:
    """The manifest's `source`: file names alone, a path may tell who the user is."""
    names = [file.name for file in files]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"import {importer}: {shown}"
