"""All rounds at one load: every entrant answers the same, one after another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from adaspec.bench.engine import client, entrants
from adaspec.bench.engine.entrants import Entrant
from adaspec.bench.engine.ledger import Entry, Ledger
from adaspec.bench.engine.server import Stable
from adaspec.bench.engine.task import Task
from adaspec.bench.engine.traffic import Call, drive
from adaspec.bench.lookup import BenchError
from adaspec.bench.machine import Pace
from adaspec.evaluate.closed_loop import ALL
from adaspec.evaluate.options import Progress

WARM_UP_TOKENS = 16
REMINDER_TOKENS = 4
"""After a server stood still: its memory, meanwhile cold, is touched before anything is timed."""


@dataclass(slots=True)
class Race:
    """All rounds at one load."""

    task: Task
    load: int
    lineup: list[Entrant]
    cells: list[str]
    dealt: dict[tuple[int, str], list[Call]]
    stable: Stable
    ledger: Ledger
    absent: dict[str, str]
    report: Progress
    pace: Pace

    def run(self) -> None:
        """Every entrant once per round and cell, in a new order each time."""
        order = random.Random(f"{self.task.seed}/{self.load}")
        done, total = 0, self.task.rounds * len(self.cells) * len(self.lineup)
        for turn in range(self.task.rounds):
            for cells in self._together():
                for entrant in order.sample(self.lineup, len(self.lineup)):
                    self.report(f"concurrency {self.load}", done, total)
                    if entrant.name not in self.absent:
                        self._visit(turn, entrant, cells)
                    done += len(cells)
        self.report(f"concurrency {self.load}", total, total)

    def _together(self) -> Iterator[Sequence[str]]:
        """The cells that a visit takes in: one, that methods be compared within minutes.

        Where servers end for want of memory, a visit is a start, and takes in all that are left.
        """
        left = self.cells
        while left:
            cells = left if self.stable.crowded else left[:1]
            yield cells
            left = left[len(cells) :]

    def _visit(self, turn: int, entrant: Entrant, cells: Sequence[str]) -> None:
        # A runner-up shows that its method was not badly set, for which the mix is enough.
        cells = [cell for cell in cells if cell == ALL or not entrant.runner_up]
        todo = [c for c in cells if (self.load, turn, c, entrant.name) not in self.ledger]
        if not todo:
            return
        try:
            self._run(turn, entrant, todo)
        except BenchError as error:
            self.stable.dismiss(entrant)
            if entrant.method == entrants.NONE:
                raise
            self.absent[entrant.name] = str(error)

    def _run(self, turn: int, entrant: Entrant, cells: Sequence[str]) -> None:
        server = self.stable.lead_out(entrant)
        stream = partial(client.stream, server.address)
        # Prompts of the first round, however often: a method that remembers answers must not meet
        # the next ones here.
        first = self.dealt[0, self.cells[0]][: self.load]
        most = REMINDER_TOKENS if server.warm else WARM_UP_TOKENS
        drive([Call(c.workload, c.id, c.prompt, most) for c in first], self.load, stream)
        server.warm = True
        fast_s = self.pace.seconds()
        for cell in cells:
            before = client.counters(server.address)
            answers = drive(self.dealt[turn, cell], self.load, stream)
            after = client.counters(server.address)
            earlier_s, fast_s = fast_s, self.pace.seconds()
            self.ledger.add(
                Entry(
                    self.load,
                    turn,
                    cell,
                    entrant.name,
                    after["drafted"] - before["drafted"],
                    after["accepted"] - before["accepted"],
                    tuple(answers),
                    (earlier_s + fast_s) / 2,
                )
            )
        server.pause()
