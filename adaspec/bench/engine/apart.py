"""Rounds of the mix that are of one workload each tell of that workload, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from adaspec.bench.engine.ledger import Entry
from adaspec.bench.engine.traffic import Call
from adaspec.evaluate.closed_loop import ALL

Dealt = Mapping[tuple[int, str], Sequence[Call]]
"""What was sent in each (round, cell)."""


def tell_apart(dealt: Dealt, entries: Sequence[Entry]) -> tuple[Dealt, list[Entry]]:
    """The mix's rounds again, each as a round of its workload; nothing where one is of several.

    `entries` are all of one load. One request at a time, a round may be a single one.
    """
    own: dict[int, str] = {}
    for (turn, cell), calls in dealt.items():
        workloads = {call.workload for call in calls}
        if cell != ALL or len(workloads) != 1:
            return {}, []
        own[turn] = workloads.pop()
    if len(set(own.values())) == 1:  # that is the mix itself
        return {}, []
    again = [replace(entry, workload=own[entry.round]) for entry in entries if entry.round in own]
    return {(turn, cell): dealt[turn, ALL] for turn, cell in own.items()}, again
