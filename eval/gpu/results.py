"""What stages write: a document each, and cells as they are measured; all whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = 1
DONE, SKIPPED, FAILED = "done", "skipped", "failed"


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a file that a reader finds whole or not at all."""
    _write_whole(path, json.dumps(document, indent=1) + "\n")


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The document in a file; None where there is none, or none that can be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


class Cells:
    """The cells of one stage, in a file of JSON lines; the first line has the stage's settings."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Go on with the file where it is of the same settings; begin it anew otherwise."""
        self._path, self._cells = path, dict[str, Any]()
        settings = json.loads(json.dumps(settings))
        lines = list(read_lines(path))
        if lines[:1] == [{"settings": settings}]:
            self._cells = {each["key"]: each["cell"] for each in lines[1:]}
        # Written anew, the file has no line that a killed process left unfinished.
        kept = [{"key": key, "cell": cell} for key, cell in self._cells.items()]
        text = "".join(json.dumps(line) + "\n" for line in ({"settings": settings}, *kept))
        _write_whole(path, text)

    def __contains__(self, key: str) -> bool:
        return key in self._cells

    def __len__(self) -> int:
        return len(self._cells)

    def values(self) -> list[Any]:
        """All cells."""
        return list(self._cells.values())

    def add(self, key: str, cell: dict[str, Any]) -> None:
        """Write a cell to the disk."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "cell": cell}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._cells[key] = cell


def cells_in(path: Path, settings: dict[str, Any]) -> list[Any]:
    """The cells that a stage of these settings has written."""
    lines = list(read_lines(path))
    if lines[:1] != [{"settings": json.loads(json.dumps(settings))}]:
        return []
    return [each["cell"] for each in lines[1:]]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of JSON lines, up to one that a killed process left unfinished."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # a process was killed as it wrote this line
            return
