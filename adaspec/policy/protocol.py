"""The protocol of a policy of one's own, which a replay asks step by step.

A policy is a class with a method `decide`, and others where the defaults of `Policy` do not do. In
every step `forwards` is asked before drafting, `decide` after it, and `learn` told what came of it.

Everything is a struct of arrays over the running rows; `slots` name requests across steps. What a
policy is handed is all that it can know: arrays of facts, and functions that look up in the text as
far as it is known. The arrays are its own: it may write into them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import SYNC
from adaspec.cost.model import CostModel
from adaspec.draft.match import Matches

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Setup:
    """What holds for a whole run: step costs, limits, and which evidence drafts will carry."""

    cost: CostModel
    cap: int
    """Most tokens that one draft may hold, splices included."""
    neural_cap: int
    """Most tokens that the neural drafter may draft; 0 where there is none."""
    slots: int
    """Slot numbers are below this."""
    shows_tokens: bool
    """Whether drafted neural tokens are handed over. Where a trace lacks them, a splice is what the
    match behind as many true tokens would copy."""
    shows_confidences: bool
    engine: str = SYNC
    """One of `cost.engine.ENGINES`."""


@dataclass(frozen=True, slots=True)
class Context:
    """Look-ups in the text of running requests, as far as it is known."""

    tail: Callable[[int], Ints]
    """(count) -> the last `count` known tokens of every row, padded with -1 on the left."""
    candidate: Callable[[int], Ints]
    """(count) -> what every row's most recent match would copy, padded with -1."""


@dataclass(slots=True)
class Drafts:
    """What the neural drafter has drafted in this step."""

    count: int
    """Forwards run: tokens drafted per row that holds the drafter. At 0 the arrays below have no
    columns."""
    tokens: Ints
    """(rows, count) drafted tokens, -1 where not drafted or not known."""
    confidences: Floats
    """(rows, count, 3) in the order of `trace.schema.CONFIDENCES`; NaN where not known."""
    splice_match: Callable[[Ints], Matches]
    """(lengths) -> the match behind row i's first lengths[i] drafted tokens; none where that is 0.

    Refused where `Setup.shows_tokens` is false."""


@dataclass(slots=True)
class Batch:
    """All running rows."""

    slots: Ints
    prompt_tokens: Ints
    position: Ints
    """Output tokens already known."""
    holds_neural: Bools
    is_new: Bools
    """The rows whose requests no step has shown before, whoever had the slot."""
    matches: Matches
    context: Context
    reading: int
    """Tokens of prompts that the step reads besides, as far as that is known."""
    drafts: Drafts = field(init=False)

    @property
    def context_tokens(self) -> Ints:
        """Known tokens per row, prompt included."""
        return self.prompt_tokens + self.position

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is verified, per row: the first `neural_len` drafted tokens, then `ngram_len` copied.

    With neural_len 0 the n-gram tokens continue the context, else they are spliced on. An n-gram
    length beyond what the match can give is cut to that. `ngram_start` names another place in the
    context to copy from than the most recent match (only with neural_len 0); -1 means that match.
    """

    neural_len: Ints
    ngram_len: Ints
    ngram_start: Ints | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the target made of a step's proposal."""

    batch: Batch
    proposal: Proposal
    drafted: Ints
    """Tokens verified per row, after cuts."""
    neural_drafted: Ints
    """How many of them the neural drafter drafted."""
    accepted: Ints
    """Of the drafted, those that the target took; may pass the output's end, which `emitted`
    does not."""
    emitted: Ints
    """(rows, most) emitted tokens, padded with -1."""
    emitted_tokens: Ints
    """How many were emitted per row."""
    step_s: float
    """The step's modelled duration."""


class Policy(Protocol):
    """Decides, per step and per request, who drafts and how far; by default nobody does.

    One object may be run many times; `start` begins each run anew. Whole numbers of any width are
    taken. `Setup.cost.step_s` prices a step.
    """

    name: str

    def start(self, setup: Setup) -> None:
        """Forget everything and prepare for a run."""
        return

    def holds_drafter(self, load: int) -> bool:
        """Whether requests hold the drafter where so many run, asked as one enters and each step.

        False takes it from all that run, for good: a step without the drafter leaves a hole in its
        cache.
        """
        return True

    def forwards(self, batch: Batch) -> int:
        """How often the drafter runs in this step, up to `Setup.neural_cap`; `decide` follows.

        It is 0 where no row holds the drafter.
        """
        return 0

    def decide(self, batch: Batch) -> Proposal:
        """What is verified."""
        return Proposal(np.zeros(len(batch), np.int32), np.zeros(len(batch), np.int32))

    def learn(self, report: StepResult) -> None:
        """Take in what came of a step."""
        return
