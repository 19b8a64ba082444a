"""A step whose drafts are known, in the terms in which observers know one of a V1 engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adaspec.policy.protocol import Bools, Floats, Ints
from adaspec.step.cut import Cut
from adaspec.vllm.batch import Reasons


@dataclass(slots=True)
class Context:
    """What the rows have emitted."""

    outputs: list[list[int]]

    def tail(self, count: int) -> Ints:
        """(rows, count) the last emitted tokens of each row, flush right."""
        rows = np.full((len(self.outputs), count), -1, np.int32)
        for row, tokens in enumerate(self.outputs):
            last = tokens[-count:] if count else []
            rows[row, count - len(last) :] = last
        return rows


@dataclass(slots=True)
class Batch:
    """The rows, as far as observers ask."""

    position: Ints
    context: Context


@dataclass(slots=True)
class Proposal:
    """What every row's look-up found."""

    ngram_len: Ints


@dataclass(slots=True)
class Step:
    """The step before its drafts."""

    batch: Batch
    proposal: Proposal
    holds_neural: Bools
    context_tokens: Ints
    forwards: int


@dataclass(slots=True)
class Drafts:
    """What the drafter drafted."""

    tokens: Ints
    confidences: Floats
    count: int


@dataclass(slots=True)
class DraftedStep:
    """A step whose drafts are known, as `vllm.batch.EngineStep` has it."""

    number: int
    requests: list[str]
    step: Step
    drafts: Drafts
    recorded: Bools
    cut: Cut
    chosen: list[list[int]]
    decision_s: float
    proposes: bool
    room: Ints | None = None
    limited: Bools | None = None
    expected: Floats | None = None
    reasons: Reasons | None = None
    proposed: list[list[int]] = field(default_factory=list)
