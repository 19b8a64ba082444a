"""Everything that the planner's stages read and write, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs
from adaspec.policy.planner.budget import ONE_FORWARD, Budget, new_budget
from adaspec.policy.planner.memory import LONGEST_NGRAM, Memory, new_memory
from adaspec.policy.planner.recorder import Recorder, new_recorder
from adaspec.predict.features import CANDIDATE, TAIL, RowFacts
from adaspec.predict.model import Model

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

LIMITS = np.dtype(
    [
        ("cap", "i8"),
        ("neural_cap", "i8"),
        ("rows", "i8"),
        ("reads_drafts", "i8"),
        ("weighs_every_splice", "i8"),
        ("is_late", "i8"),
        ("prompt_tokens", "i8"),
    ]
)
"""The longest draft, the longest neural draft, the rows of this step; whether drafted tokens change
what is expected; whether splices are weighed that could not pay at the present price, so that
what comes of them can be learned; whether the host decides before outcomes are known; and how many
tokens of prompts this step reads besides."""


class Planner(NamedTuple):
    """The memory of one policy, or of several that share a batch."""

    models: Longs
    """Where each model lies in memory (see `address`)."""
    model_of_row: Ints
    """Which of the models predicts for each running row."""
    memory: Memory
    costs: Costs
    rows: RowFacts
    """Room for as many rows as there are slots; the first `rows` of the limits are this step's."""
    limits: NDArray[Any]
    """One `LIMITS`."""
    recorder: Recorder
    budget: Budget
    """What is decided for the whole batch."""


def new_planner(
    models: Sequence[Model],
    model_addresses: Longs,
    costs: Costs,
    slots: int,
    cap: int,
    neural_cap: int,
    *,
    reads_drafts: bool,
    is_late: bool = False,
    recorder: Recorder | None = None,
    forwards: Array = ONE_FORWARD,
) -> Planner:
    """A planner that has seen nothing yet; `forwards` is its table of them by load."""
    limits = np.zeros(1, LIMITS)
    limits[0] = (cap, neural_cap, 0, reads_drafts, False, is_late, 0)
    return Planner(
        models=model_addresses,
        model_of_row=np.zeros(slots, np.int32),
        memory=new_memory(models, slots),
        costs=costs,
        rows=new_rows(slots),
        limits=limits,
        recorder=new_recorder(0) if recorder is None else recorder,
        budget=new_budget(slots, LONGEST_NGRAM, forwards),
    )


def new_rows(count: int) -> RowFacts:
    """Room for the facts of so many rows."""
    columns: dict[str, Any] = {name: np.zeros(count, np.int32) for name in RowFacts._fields}
    columns["holds_neural"] = np.zeros(count, np.bool_)
    columns["tail"] = np.full((count, TAIL), -1, np.int32)
    columns["candidate"] = np.full((count, CANDIDATE), -1, np.int32)
    return RowFacts(**columns)
