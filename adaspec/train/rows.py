"""The table that a model is fitted on: what a policy sees at every position, by group of heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.learned import LearnedPolicy
from adaspec.replay import learned
from adaspec.replay.recording import Recording

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Array = NDArray[np.float64]
Members = NDArray[np.bool_]

SURVEYED_TOGETHER = 256
"""Positions that are surveyed at once."""


class FeatureRows(NamedTuple):
    """Rows of features, each with the flat position that it is about."""

    at: Longs
    depth: Ints
    """Neural tokens drafted there, that a splice lies behind or of which the last is looked at."""
    x: Floats

    def chosen(self, rows: NDArray[np.bool_] | Longs) -> FeatureRows:
        """Some of the rows."""
        return FeatureRows(self.at[rows], self.depth[rows], self.x[rows])


Table = dict[str, FeatureRows]
"""Rows by the group of heads that reads them."""


def survey(recording: Recording, policy: LearnedPolicy, members: Members, drafts: bool) -> Table:
    """What the policy sees before drafting at every position of the marked requests.

    With `drafts`, what drafts of all lengths there, and the matches behind them, show it instead.
    """
    requests = np.flatnonzero(members).astype(np.int32)
    surveyed = learned.survey(recording, policy, requests, SURVEYED_TOGETHER, drafts)
    if not drafts:
        depth = np.zeros(len(surveyed.at), np.int32)
        return {"before": FeatureRows(surveyed.at, depth, surveyed.before)}
    table = {"splice": FeatureRows(surveyed.splice_at, surveyed.splice_depth, surveyed.splice)}
    if policy.model.reads_evidence:
        drafted = surveyed.drafted_at, surveyed.drafted_depth, surveyed.drafted
        table["evidence"] = FeatureRows(*drafted)
    return table


def pooled(tables: Sequence[Table]) -> Table:
    """All rows of the tables, which have the same groups, as one table."""
    columns = {group: zip(*(each[group] for each in tables), strict=True) for group in tables[0]}
    return {group: FeatureRows(*map(np.concatenate, each)) for group, each in columns.items()}


def of_members(table: Table, members: Members, request: Ints) -> Table:
    """The rows of the marked requests; `request` has each flat position's request."""
    return {group: rows.chosen(members[request[rows.at]]) for group, rows in table.items()}


def thinned(rows: FeatureRows, most: int, rng: np.random.Generator) -> FeatureRows:
    """At most so many of the rows, drawn at random, in order."""
    if len(rows.at) <= most:
        return rows
    return rows.chosen(np.sort(rng.choice(len(rows.at), most, replace=False)))
