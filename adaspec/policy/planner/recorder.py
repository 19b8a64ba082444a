"""Records what a policy sees at each position, as rows for training and calibration."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.planner.curves import may_splice
from adaspec.policy.planner.memory import Memory
from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.features import FEATURES, BehindMatches, RowFacts
from adaspec.predict.splicing import SPLICE

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]

_FILLED = np.dtype([("decisions", "i8"), ("splices", "i8"), ("drafted", "i8")])


class Recorder(NamedTuple):
    """What was seen; of no slots it records nothing, and what comes beyond its room is dropped."""

    place: Longs
    """Flat position of each running row at this step; the loop that runs them fills it in."""
    at: Longs
    """Flat position of each decision."""
    x: Floats
    splice_at: Longs
    """Flat position of each splice that was weighed, its neural length, and features."""
    splice_length: Ints
    splice_x: Floats
    evidence_at: Longs
    """Flat position of each decision in which a token was drafted, its depth, and features."""
    evidence_depth: Ints
    evidence_x: Floats
    filled: NDArray[Any]
    """How many decisions, splices and drafted tokens there are, as one record."""


def new_recorder(slots: int, decisions: int = 0, splices: int = 0, drafted: int = 0) -> Recorder:
    """A recorder with room for so many of each kind."""
    return Recorder(
        place=np.zeros(slots, np.int64),
        at=np.zeros(decisions, np.int64),
        x=np.zeros((decisions, FEATURES), np.float32),
        splice_at=np.zeros(splices, np.int64),
        splice_length=np.zeros(splices, np.int32),
        splice_x=np.zeros((splices, len(SPLICE)), np.float32),
        evidence_at=np.zeros(drafted, np.int64),
        evidence_depth=np.zeros(drafted, np.int32),
        evidence_x=np.zeros((drafted, len(EVIDENCE)), np.float32),
        filled=np.zeros(1, _FILLED),
    )


@compiled
def record_decisions(recorder: Recorder, memory: Memory, rows: RowFacts) -> None:
    """Record what was known of every row before drafting."""
    filled = recorder.filled[0]
    for row in range(rows.slots.shape[0]):
        entry = filled.decisions
        if entry < recorder.at.shape[0]:
            recorder.at[entry] = recorder.place[row]
            recorder.x[entry] = memory.features[row]
            filled.decisions = entry + 1


@compiled
def record_evidence(recorder: Recorder, memory: Memory, rows: RowFacts, depth: int) -> None:
    """Record what the tokens drafted at this depth showed."""
    filled = recorder.filled[0]
    observed = 0
    for row in range(rows.slots.shape[0]):
        if not rows.holds_neural[row]:
            continue
        entry = filled.drafted
        if entry < recorder.evidence_at.shape[0]:
            recorder.evidence_at[entry] = recorder.place[row]
            recorder.evidence_depth[entry] = depth
            recorder.evidence_x[entry] = memory.evidence_features[observed]
            filled.drafted = entry + 1
        observed += 1


@compiled
def record_splices(
    recorder: Recorder,
    memory: Memory,
    rows: RowFacts,
    depths: Ints,
    behind: BehindMatches,
    price: float,
) -> None:
    """Record what was known of the splices weighed behind `depths` neural tokens."""
    filled = recorder.filled[0]
    observed = 0
    for row in range(rows.slots.shape[0]):
        depth = depths[row]
        reached = memory.neural[row, depth]
        if not may_splice(rows.holds_neural[row], behind.length[row], depth, reached, price):
            continue
        entry = filled.splices
        if entry < recorder.splice_at.shape[0]:
            recorder.splice_at[entry] = recorder.place[row]
            recorder.splice_length[entry] = depth
            recorder.splice_x[entry] = memory.splice_features[observed]
            filled.splices = entry + 1
        observed += 1
