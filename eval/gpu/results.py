"""What is written: documents, and lines as they are measured; all whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = 2


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a file that a reader finds whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


class Lines:
    """A file of JSON lines, of which the first has the settings."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._path = path
        self.add(settings)

    def add(self, line: dict[str, Any]) -> None:
        """Write a line to the disk."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of JSON lines, up to one that a killed process left unfinished."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # a process was killed as it wrote this line
            return
