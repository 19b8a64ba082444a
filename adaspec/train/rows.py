"""The table that a model is fitted on: what a policy sees at every position, by group of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import LONGEST_NEURAL
from adaspec.policy.planner.recorder import new_recorder
from adaspec.replay import learned
from adaspec.replay.recording import Recording

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Array = NDArray[np.float64]
Members = NDArray[np.bool_]

SURVEYED_TOGETHER = 256
"""Positions that are surveyed at once."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of features, each with the flat position that it is about."""

    at: Longs
    depth: Ints
    """Neural tokens drafted there, that a splice lies behind or of which the last is looked at."""
    x: Floats

    def chosen(self, rows: NDArray[np.bool_] | Longs) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, each.name)[rows] for each in fields(self)))


Table = dict[str, Rows]
"""Rows by the group of heads that reads them."""


def survey(recording: Recording, policy: LearnedPolicy, members: Members, drafts: bool) -> Table:
    """What the policy sees before drafting at every position of the marked requests.

    With `drafts`, what drafts of all lengths there, and the matches behind them, show it instead.
    """
    requests = np.flatnonzero(members).astype(np.int32)
    size = int((recording.columns.length[requests] - 1).sum())
    behind = size * min(policy.neural_cap, LONGEST_NEURAL) if drafts else 0
    reads = policy.model.reads_evidence
    recorder = new_recorder(SURVEYED_TOGETHER, 0 if drafts else size, behind, behind * reads)
    learned.survey(recording, policy, requests, recorder)
    decided, spliced, drafted = map(int, recorder.filled[0].tolist())
    if not drafts:
        none = np.zeros(decided, np.int32)
        return {"before": Rows(recorder.at[:decided], none, recorder.x[:decided])}
    # Copies, as there is room for many more.
    table: dict[str, tuple[Any, ...]]
    table = {"splice": (recorder.splice_at, recorder.splice_length, recorder.splice_x)}
    table["evidence"] = (recorder.evidence_at, recorder.evidence_depth, recorder.evidence_x)
    found = {"splice": spliced, "evidence": drafted}
    return {
        group: Rows(*(each[: found[group]].copy() for each in columns))
        for group, columns in table.items()
        if group == "splice" or reads
    }


def pooled(tables: Sequence[Table]) -> Table:
    """All rows of the tables, which have the same groups, as one table."""
    return {
        group: Rows(
            *(
                np.concatenate([getattr(table[group], each.name) for table in tables])
                for each in fields(Rows)
            )
        )
        for group in tables[0]
    }


def of_members(table: Table, members: Members, request: Ints) -> Table:
    """The rows of the marked requests; `request` has each flat position's request."""
    return {group: rows.chosen(members[request[rows.at]]) for group, rows in table.items()}


def thinned(rows: Rows, most: int, rng: np.random.Generator) -> Rows:
    """At most so many of the rows, drawn at random, in order."""
    if len(rows.at) <= most:
        return rows
    return rows.chosen(np.sort(rng.choice(len(rows.at), most, replace=False)))
