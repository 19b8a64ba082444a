"""Everything that the planner's stages read and write, by name; and its constants."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs
from adaspec.jit import compiled
from adaspec.policy.planner.budget import BatchState, new_batch_state
from adaspec.policy.planner.forwards import GAINS, ONE_FORWARD
from adaspec.predict.features import (
    CANDIDATE,
    EVIDENCE_FEATURES,
    FEATURES,
    SPLICE_FEATURES,
    TAIL,
    RowFacts,
)
from adaspec.predict.model import HEADS, CompiledModel, Model
from adaspec.predict.network import Scratch, new_scratch
from adaspec.predict.tables import LEVELS

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Record = NDArray[Any]
"""An array of records; compiled code reads and writes their fields by name."""

LONGEST_NEURAL = 8
LONGEST_NGRAM = 48
LONGEST_SPLICE = 16

SPLICE_WEIGHT = 1.4
"""The factor of what a splice is predicted to bring, before its match is known: predicted is the
mean of a logarithm, which is less than the logarithm of the mean."""
SPLICE_TOKENS = 3.0
"""How many tokens that splice is taken to verify."""
NGRAM_EXPONENT = 1.6
"""The power to which the predicted chance of a copy is raised: certain ones are too hopeful."""
RATE_STEPS = 1000
"""The throughput is that of so many last steps."""

NGRAM, NEURAL, CORRECTED = range(3)
"""The drafters whose curves are corrected, as columns of `State.expected` and entries of
`State.record`, and how many they are."""

THROUGHPUT = np.dtype([("tokens", "f8"), ("seconds", "f8"), ("steps", "f8")])
"""Sums over the last steps, and how many steps there were in all."""


RECORD = np.dtype([("expected", "f8"), ("accepted", "f8"), ("drafts", "f8"), ("factor", "f8")])
"""A drafter's recent drafts: tokens expected before correction, tokens accepted, how many drafts;
and the factor by which its curves are corrected in this step."""


class State(NamedTuple):
    """What the stages leave for each other, and have learned, for as many slots as there are."""

    features: Floats
    predictions: Array
    neural: Array
    """(rows, LONGEST_NEURAL + 1) P(the first j neural tokens are accepted)."""
    ngram: Array
    """(rows, LONGEST_NGRAM + 1) the same of n-gram tokens."""
    splice_expected: Array
    """Tokens that a splice is worth behind neural tokens that are all accepted, before its match is
    known."""
    splice_value: Array
    """(rows, LONGEST_NEURAL + 1) the value of a splice behind so many neural tokens, price paid."""
    splice_len: Ints
    """The same shape: how many tokens to splice on, where the match behind them is known."""
    splice_features: Floats
    splice_predictions: Array
    splice: Array
    """(rows, LONGEST_NEURAL + 1, LONGEST_SPLICE + 1) survival of what could be copied behind so
    many neural tokens that are all accepted."""
    evidence_features: Floats
    evidence_predictions: Array
    matching_tokens: Ints
    """How many leading drafted tokens are the n-gram candidate's."""
    least_confidence: Floats
    """(rows, 2) the least log-probability and margin of the tokens drafted so far."""
    offered: Array
    """(rows, LONGEST_NGRAM) P(each token of the draft and all before it are accepted)."""
    neural_gain: Array
    """(rows, GAINS) what each row's best draft is worth beyond the best one that is only copied."""
    scale: Array
    """(rows, CORRECTED) by what each row's curves were scaled in this step."""
    expected: Array
    """(rows, CORRECTED) tokens expected to be accepted of what was proposed, by drafter."""
    record: Record
    """One `RECORD` per drafter."""
    recent_steps: Array
    """(RATE_STEPS, 2) tokens and seconds of the last steps, written in turn."""
    throughput: Record
    """One `THROUGHPUT`."""
    keys: NDArray[np.uint64]
    scratch: Scratch


def new_state(model: Model, slots: int) -> State:
    """Fresh state for so many slots, with room for what the model predicts."""
    neural, ngram, splice = LONGEST_NEURAL + 1, LONGEST_NGRAM + 1, LONGEST_SPLICE + 1
    return State(
        features=np.zeros((slots, FEATURES), np.float32),
        predictions=np.zeros((slots, len(HEADS["before"]))),
        neural=np.zeros((slots, neural)),
        ngram=np.zeros((slots, ngram)),
        splice_expected=np.zeros(slots),
        splice_value=np.zeros((slots, neural)),
        splice_len=np.zeros((slots, neural), np.int32),
        splice_features=np.zeros((slots, len(SPLICE_FEATURES)), np.float32),
        splice_predictions=np.zeros((slots, len(HEADS["splice"]))),
        splice=np.zeros((slots, neural, splice)),
        evidence_features=np.zeros((slots, len(EVIDENCE_FEATURES)), np.float32),
        evidence_predictions=np.zeros((slots, len(HEADS["evidence"]))),
        matching_tokens=np.zeros(slots, np.int32),
        least_confidence=np.zeros((slots, 2), np.float32),
        offered=np.zeros((slots, LONGEST_NGRAM)),
        neural_gain=np.zeros((slots, GAINS)),
        scale=np.ones((slots, CORRECTED)),
        expected=np.zeros((slots, CORRECTED)),
        record=np.zeros(CORRECTED, RECORD),
        recent_steps=np.zeros((RATE_STEPS, 2)),
        throughput=np.zeros(1, THROUGHPUT),
        keys=np.zeros(LEVELS, np.uint64),
        scratch=new_scratch(list(model.networks.values())),
    )


RUN = np.dtype(
    [
        ("cap", "i8"),
        ("neural_cap", "i8"),
        ("rows", "i8"),
        ("reads_drafts", "i8"),
        ("is_async", "i8"),
        ("prompt_tokens", "i8"),
    ]
)
"""The longest draft, the longest neural draft, the rows of this step; whether drafted tokens change
what is expected; whether the host decides before outcomes are known; and how many tokens of prompts
this step reads besides."""


class Planner(NamedTuple):
    """All that a policy works on."""

    model: CompiledModel
    state: State
    costs: Costs
    rows: RowFacts
    """Room for as many rows as there are slots; the first `rows` of the run are this step's."""
    run: NDArray[Any]
    """One `RUN`."""
    batch_state: BatchState
    """What is decided for the whole batch."""


def new_planner(
    model: Model,
    costs: Costs,
    slots: int,
    cap: int,
    neural_cap: int,
    *,
    reads_drafts: bool,
    is_async: bool = False,
    forwards: Array = ONE_FORWARD,
) -> Planner:
    """A planner that has seen nothing yet; `forwards` is the table of them at first, by load."""
    run = np.zeros(1, RUN)
    run[0] = (cap, neural_cap, 0, reads_drafts, is_async, 0)
    return Planner(
        model=model.compiled(),
        state=new_state(model, slots),
        costs=costs,
        rows=new_rows(slots),
        run=run,
        batch_state=new_batch_state(slots, LONGEST_NGRAM, forwards),
    )


def new_rows(count: int) -> RowFacts:
    """Room for the facts of so many rows."""
    columns: dict[str, Any] = {name: np.zeros(count, np.int32) for name in RowFacts._fields}
    columns["holds_neural"] = np.zeros(count, np.bool_)
    columns["tail"] = np.full((count, TAIL), -1, np.int32)
    columns["candidate"] = np.full((count, CANDIDATE), -1, np.int32)
    return RowFacts(**columns)


@compiled
def rows_of(planner: Planner) -> RowFacts:
    """This step's rows."""
    count, rows = planner.run[0].rows, planner.rows
    return RowFacts(
        rows.slots[:count],
        rows.prompt_tokens[:count],
        rows.position[:count],
        rows.holds_neural[:count],
        rows.length[:count],
        rows.start[:count],
        rows.votes[:count],
        rows.occurrences[:count],
        rows.available[:count],
        rows.tail[:count],
        rows.candidate[:count],
    )
