"""What a run of the learned policy saw, for training."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.desk import Desk
from adaspec.policy.expectation import may_splice
from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.features import FEATURES, Found, Rows
from adaspec.predict.splicing import SPLICE

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]


class Record(NamedTuple):
    """What a run saw, for training; empty arrays record nothing."""

    at: Longs
    """Flat position of each decision."""
    x: Floats
    held: NDArray[np.bool_]
    """Whether the request held the neural drafter."""
    splice_at: Longs
    """Flat position of each decision that spliced, its neural length, and features."""
    splice_length: Ints
    splice_x: Floats
    evidence_at: Longs
    evidence_depth: Ints
    evidence_x: Floats
    filled: Longs
    """How many of each kind."""


def new_record(decisions: int, splices: int, depths: int) -> Record:
    """Room for so many of each kind; what comes beyond is dropped."""
    return Record(
        at=np.zeros(decisions, np.int64),
        x=np.zeros((decisions, FEATURES), np.float32),
        held=np.zeros(decisions, np.bool_),
        splice_at=np.zeros(splices, np.int64),
        splice_length=np.zeros(splices, np.int32),
        splice_x=np.zeros((splices, len(SPLICE)), np.float32),
        evidence_at=np.zeros(depths, np.int64),
        evidence_depth=np.zeros(depths, np.int32),
        evidence_x=np.zeros((depths, len(EVIDENCE)), np.float32),
        filled=np.zeros(3, np.int64),
    )


@compiled
def keep_decisions(record: Record, desk: Desk, rows: Rows, at: Longs) -> None:
    """What was known before drafting; `at` are the rows' flat positions."""
    for row in range(rows.slots.shape[0]):
        place = record.filled[0]
        if place < record.at.shape[0]:
            record.at[place] = at[row]
            record.x[place] = desk.x[row]
            record.held[place] = rows.holds_neural[row]
            record.filled[0] = place + 1


@compiled
def keep_evidence(record: Record, desk: Desk, rows: Rows, at: Longs, depth: int) -> None:
    """What the tokens drafted at this depth said."""
    asked = 0
    for row in range(rows.slots.shape[0]):
        if not rows.holds_neural[row]:
            continue
        place = record.filled[2]
        if place < record.evidence_at.shape[0]:
            record.evidence_at[place] = at[row]
            record.evidence_depth[place] = depth
            record.evidence_x[place] = desk.evidence_x[asked]
            record.filled[2] = place + 1
        asked += 1


@compiled
def keep_splices(
    record: Record,
    desk: Desk,
    rows: Rows,
    at: Longs,
    neural_len: Ints,
    found: Found,
    price: float,
) -> None:
    """What was known of the splices that were judged behind so many neural tokens."""
    asked = 0
    for row in range(rows.slots.shape[0]):
        depth = neural_len[row]
        reached = desk.neural[row, depth]
        if not may_splice(rows.holds_neural[row], found.length[row], depth, reached, price):
            continue
        place = record.filled[1]
        if place < record.splice_at.shape[0]:
            record.splice_at[place] = at[row]
            record.splice_length[place] = neural_len[row]
            record.splice_x[place] = desk.splice_x[asked]
            record.filled[1] = place + 1
        asked += 1
