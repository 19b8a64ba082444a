"""The rounds of a benchmark: run in turns, and kept on disk, so that a killed one is resumed."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from adaspec.bench.engine import client
from adaspec.bench.engine.client import Answer, Call, send_all
from adaspec.bench.engine.methods import NONE, BenchmarkOptions, Candidate
from adaspec.bench.engine.prompts import Dealt
from adaspec.bench.engine.server import Servers
from adaspec.bench.machine import memory_read_s
from adaspec.documents import parse_json
from adaspec.errors import BenchError, PolicyError
from adaspec.evaluate.options import ALL, Progress
from adaspec.policy.artifact import CHECKSUMS
from adaspec.policy.shipped import find_policy

SCHEMA = 1
WARM_UP_TOKENS = 16
RESUME_TOKENS = 4
"""After a server was suspended: its memory, meanwhile cold, is touched before anything is timed."""
_ADVICE = "give --force"


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one cell by one candidate."""

    concurrency: int
    number: int
    cell: str
    """A workload, or all of them mixed."""
    candidate: str
    drafted: float
    accepted: float
    answers: tuple[Answer, ...]
    memory_read_s: float | None = None
    """Seconds of a fixed read of memory before and after: how fast the machine was."""

    @property
    def key(self) -> tuple[int, int, str, str]:
        """Names that no other round of a benchmark has together."""
        return self.concurrency, self.number, self.cell, self.candidate

    def document(self) -> dict[str, Any]:
        """A line of the file of rounds."""
        values = {name: getattr(self, field) for name, field in _FIELDS.items()}
        return values | {"answers": [asdict(answer) for answer in self.answers]}

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Round:
        """The round that `document` wrote."""
        answers = tuple(
            Answer(**each | {key: tuple(each[key]) for key in ("arrived_s", "counts", "tokens")})
            for each in line["answers"]
        )
        return cls(**{field: line[name] for name, field in _FIELDS.items()}, answers=answers)


_FIELDS = {
    "concurrency": "concurrency",
    "round": "number",
    "workload": "cell",
    "entrant": "candidate",
    "drafted": "drafted",
    "accepted": "accepted",
    "pace_s": "memory_read_s",
}
"""A stored round's keys, which are those of version 0.1, and the fields that they hold."""


@dataclass(frozen=True, slots=True)
class Load:
    """All that runs at one concurrency."""

    concurrency: int
    candidates: list[Candidate]
    cells: list[str]
    dealt: Dealt
    """The calls of each round and cell."""
    repeated: bool
    """Whether prompts had to come more than once."""


class RoundsFile:
    """All rounds of one benchmark, in one file of JSON lines; the first says which benchmark."""

    def __init__(self, path: Path, benchmark: Mapping[str, Any]) -> None:
        """Continue the file, or begin it; a `BenchError` where it is of another benchmark."""
        self._path = path
        self._rounds: dict[tuple[int, int, str, str], Round] = {}
        header = json.loads(json.dumps({"schema": SCHEMA, "task": benchmark}))
        if path.exists() and path.stat().st_size:
            self._read(header)
        else:
            self._append(header)

    def __iter__(self) -> Iterator[Round]:
        return iter(self._rounds.values())

    def __contains__(self, key: tuple[int, int, str, str]) -> bool:
        return key in self._rounds

    def first(self, count: int) -> list[Round]:
        """The rounds numbered below `count`: the file may hold more."""
        return [each for each in self if each.number < count]

    def add(self, done: Round) -> None:
        """Write a round to disk before anything else is measured."""
        self._append(done.document())
        self._rounds[done.key] = done

    def _append(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document) + "\n"
        # Only the user may read it: prompts' answers are users' text.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _read(self, header: Mapping[str, Any]) -> None:
        try:
            content = self._path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BenchError(f"{self._path}: damaged ({error}): {_ADVICE}") from error
        complete, _, torn = content.rpartition("\n")
        if torn:
            # A run was killed as it wrote its last line: that round is measured again.
            os.truncate(self._path, len(content.encode()) - len(torn.encode()))
        try:
            lines = complete.split("\n") if complete else []
            documents = [parse_json(line, str(self._path), BenchError, _ADVICE) for line in lines]
            if not documents:
                self._append(header)
                return
            if documents[0] != header:
                raise BenchError(
                    f"{self._path}: holds another benchmark ({_differs(documents[0], header)}): "
                    "give the same command, another folder, or --force"
                )
            self._rounds = {each.key: each for each in map(Round.read, documents[1:])}
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{self._path}: damaged ({error}): {_ADVICE}") from error


def _differs(stored: Any, wanted: Mapping[str, Any]) -> str:
    if not isinstance(stored, dict) or stored.get("schema") != wanted["schema"]:
        return "of another schema"
    old, new = stored.get("task", {}), wanted["task"]
    return f"other {', '.join(name for name in {**old, **new} if old.get(name) != new.get(name))}"


def fingerprint(
    options: BenchmarkOptions,
    calls: Mapping[str, Sequence[Call]],
    candidates: Mapping[int, Sequence[Candidate]],
    vllm: str,
) -> dict[str, Any]:
    """All that must be the same for a benchmark to be resumed, be it for more rounds.

    It has names and digests of the files behind them: a policy may be trained anew in its folder.
    """
    everything = [
        (c.workload, c.id, c.prompt, c.max_tokens) for each in calls.values() for c in each
    ]
    return {
        "model": options.model,
        "drafter": options.draft,
        "prompts": _digest([json.dumps(everything).encode()]),
        "entrants": {
            str(load): [[each.name, each.config] for each in several]
            for load, several in candidates.items()
        },
        "policies": [_policy_digest(each) for each in options.policies],
        "head": None if options.draft is None else _file_digest(Path(options.draft)),
        "costs": None if options.cost is None else _file_digest(Path(options.cost)),
        "requests": options.requests,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "workloads": options.workloads,
        "engine": options.engine,
        "vllm": vllm,
    }


def _policy_digest(named: str) -> str | None:
    """The digest of a policy's folder; None for a spec, which says everything itself."""
    try:
        return _file_digest(find_policy(named) / CHECKSUMS)
    except PolicyError:
        return None


def _file_digest(path: Path) -> str | None:
    """The digest of a file or of a folder's files; None where there is neither, as for a hub id."""
    if path.is_file():
        return _digest([path.read_bytes()])
    if not path.is_dir():
        return None
    files = sorted(each for each in path.iterdir() if each.is_file())
    return _digest(part for each in files for part in (each.name.encode(), each.read_bytes()))


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs all rounds at one load: every candidate answers the same calls, one after another."""

    options: BenchmarkOptions
    load: Load
    servers: Servers
    file: RoundsFile
    absent: dict[str, str]
    """Methods and candidates that do not run, with why."""
    report: Progress

    def run(self) -> None:
        """Run every candidate once per round and cell, in a new order each time."""
        load, options = self.load, self.options
        order = random.Random(f"{options.seed}/{load.concurrency}")
        what = f"concurrency {load.concurrency}"
        done, total = 0, options.rounds * len(load.cells) * len(load.candidates)
        for number in range(options.rounds):
            left = load.cells
            while left:
                # One cell per visit, so that methods are compared within minutes. Where servers end
                # for want of memory a visit is a start, and takes in all cells that are left.
                cells = left if self.servers.short_of_memory else left[:1]
                for candidate in order.sample(load.candidates, len(load.candidates)):
                    self.report(what, done, total)
                    if candidate.name not in self.absent:
                        self._visit(number, candidate, cells)
                    done += len(cells)
                left = left[len(cells) :]
        self.report(what, total, total)

    def _visit(self, number: int, candidate: Candidate, cells: Sequence[str]) -> None:
        # A runner-up shows that its method was not badly set, for which the mix is enough.
        missing = [
            cell
            for cell in cells
            if (cell == ALL or not candidate.runner_up)
            and (self.load.concurrency, number, cell, candidate.name) not in self.file
        ]
        if not missing:
            return
        try:
            self._measure(number, candidate, missing)
        except BenchError as error:
            self.servers.end(candidate)
            if candidate.method == NONE:
                raise
            self.absent[candidate.name] = str(error)

    def _measure(self, number: int, candidate: Candidate, cells: Sequence[str]) -> None:
        load = self.load
        server = self.servers.running(candidate)
        stream = partial(client.stream, server.address)
        # Prompts of the first round, however often: a method that remembers answers must not meet
        # the next ones now.
        first = load.dealt[0, load.cells[0]][: load.concurrency]
        tokens = RESUME_TOKENS if server.warm else WARM_UP_TOKENS
        send_all([replace(call, max_tokens=tokens) for call in first], load.concurrency, stream)
        server.warm = True
        read_s = memory_read_s()
        for cell in cells:
            before = client.counters(server.address)
            answers = send_all(load.dealt[number, cell], load.concurrency, stream)
            after = client.counters(server.address)
            earlier_s, read_s = read_s, memory_read_s()
            self.file.add(
                Round(
                    load.concurrency,
                    number,
                    cell,
                    candidate.name,
                    after["drafted"] - before["drafted"],
                    after["accepted"] - before["accepted"],
                    tuple(answers),
                    (earlier_s + read_s) / 2,
                )
            )
        server.pause()
