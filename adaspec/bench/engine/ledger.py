"""What was measured so far, on disk line by line: a killed benchmark goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspec.bench.engine.traffic import Answer
from adaspec.bench.lookup import BenchError
from adaspec.documents import parse_json

SCHEMA = 1
_AGAIN = "give --force"


@dataclass(frozen=True, slots=True)
class Entry:
    """One round of one cell by one entrant."""

    concurrency: int
    round: int
    workload: str
    entrant: str
    drafted: float
    accepted: float
    answers: tuple[Answer, ...]
    pace_s: float | None = None
    """What a fixed read of memory took before and after: how fast the machine was."""

    @property
    def key(self) -> tuple[int, int, str, str]:
        """What tells it from every other."""
        return self.concurrency, self.round, self.workload, self.entrant


class Ledger:
    """All entries of one task, in one file of JSON lines; the first says which task."""

    def __init__(self, path: Path, task: Mapping[str, Any]) -> None:
        """Go on with the file, or begin it; a `BenchError` where it is of another task."""
        self._path = path
        self._entries: dict[tuple[int, int, str, str], Entry] = {}
        wanted = json.loads(json.dumps({"schema": SCHEMA, "task": task}))
        if path.exists() and path.stat().st_size:
            self._read(wanted)
        else:
            self._append(wanted)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, key: tuple[int, int, str, str]) -> bool:
        return key in self._entries

    def first_rounds(self, rounds: int) -> list[Entry]:
        """Those of so many rounds: a benchmark may have gone on for more."""
        return [entry for entry in self if entry.round < rounds]

    def add(self, entry: Entry) -> None:
        """Have it on disk before anything else is measured."""
        self._append(
            {
                "concurrency": entry.concurrency,
                "round": entry.round,
                "workload": entry.workload,
                "entrant": entry.entrant,
                "drafted": entry.drafted,
                "accepted": entry.accepted,
                "pace_s": entry.pace_s,
                "answers": [answer.document() for answer in entry.answers],
            }
        )
        self._entries[entry.key] = entry

    def _append(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document) + "\n"
        # Prompts' answers are users' text.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _read(self, wanted: Mapping[str, Any]) -> None:
        try:
            content = self._path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BenchError(f"{self._path}: damaged ({error}): {_AGAIN}") from error
        whole, _, torn = content.rpartition("\n")
        if torn:
            # The last line of a killed run: nobody has read it yet.
            os.truncate(self._path, len(content.encode()) - len(torn.encode()))
        lines = whole.split("\n") if whole else []
        try:
            documents = [parse_json(line, str(self._path), BenchError, _AGAIN) for line in lines]
            if not documents:
                self._append(wanted)
                return
            if documents[0] != wanted:
                raise BenchError(
                    f"{self._path}: holds another benchmark ({_differs(documents[0], wanted)}): "
                    "give the same command, another folder, or --force"
                )
            for each in documents[1:]:
                answers = tuple(Answer.from_document(answer) for answer in each.pop("answers"))
                entry = Entry(**each, answers=answers)
                self._entries[entry.key] = entry
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{self._path}: damaged ({error}): {_AGAIN}") from error


def _differs(found: Any, wanted: Mapping[str, Any]) -> str:
    if not isinstance(found, dict) or found.get("schema") != wanted["schema"]:
        return "of another schema"
    theirs, mine = found.get("task", {}), wanted["task"]
    names = [name for name in {**theirs, **mine} if theirs.get(name) != mine.get(name)]
    return f"other {', '.join(names)}"
