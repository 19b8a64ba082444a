"""The one protocol behind which everything that decides stands, and what passes through it.

An executor (the replay, or the engine plug-in) drives a policy through one engine step like this:

    admit(arrival)              as each request enters: does it hold the neural drafter at all?
    keep(batch)                 where some request does: do they go on? A policy may lack this stage
    plan(batch)                 before drafting: at most how many drafter forwards
    proceed(batch, drafts)      after each forward but the last: one more?
    settle(batch, drafts)       after drafting: which tokens of which source are verified, per row
    learn(batch, proposal, outcome)
    release(slots)              as requests leave

Everything is a struct of arrays over the running rows; `slots` name requests across steps. What an
executor hands over is all that a policy can know: arrays of facts, and capabilities (methods) that
look up in the text as far as it is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import SYNC
from adaspec.cost.model import CostModel
from adaspec.draft.index import Matches

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
    """Whether drafted neural tokens are handed over (a trace may lack them)."""
    shows_confidences: bool
    engine: str = SYNC
    """One of `cost.engine.ENGINES`.

    In an async one a policy must have one stage more, `budget(batch)`: the most tokens that the
    drafts of a step may hold, all rows together. The step takes the time of so many, used or not.
    It is asked for with `plan`, of which every forward runs. Neither answer may use the last
    outcomes: a budget knows what was chosen in the step before, and what came of the one before
    that; the number of forwards knows one step less. All else is chosen with everything known."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is about to run."""

    slot: int
    prompt_tokens: int
    running: int
    """Rows that will run beside it, itself included."""


class Context(Protocol):
    """Look-ups in the text of running requests, as far as it is known."""

    def tail(self, count: int) -> Ints:
        """The last `count` known tokens of every row, padded with -1 on the left."""

    def candidate(self, count: int) -> Ints:
        """What every row's most recent match would copy, padded with -1."""

    def vllm_match(self, min_match: int, max_match: int) -> tuple[Ints, Ints]:
        """vLLM's own look-up per row: where copying starts (-1: nowhere), the match's length."""

    def token_at(self, places: Ints) -> Ints:
        """The known token at a place of every row, -1 where there is none (yet)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All running rows before drafting."""

    slots: Ints
    prompt_tokens: Ints
    position: Ints
    """Output tokens already known."""
    holds_neural: Bools
    matches: Matches
    context: Context
    reading: int = 0
    """Tokens of prompts that the step reads besides, as far as that is known."""

    @property
    def context_tokens(self) -> Ints:
        """Known tokens per row, prompt included."""
        return self.prompt_tokens + self.position

    def __len__(self) -> int:
        return len(self.slots)


class Behind(Protocol):
    """Look-ups behind drafted neural tokens."""

    def __call__(self, neural_len: Ints) -> Matches:
        """The match behind row i's first `neural_len[i]` drafted tokens; none where that is 0.

        Where `Setup.shows_tokens` is false the true tokens stand in for the drafted ones. A row
        may then be looked up at one length only, once drafting is over, and must verify just that
        many neural tokens; `start` and `first` are -1. An executor refuses all else.
        """


@dataclass(slots=True)
class Drafts:
    """What the neural drafter has drafted so far in this step."""

    count: int
    """Forwards run so far: tokens drafted per row that holds the drafter. At 0 the arrays below
    have no columns."""
    tokens: Ints
    """(rows, count) drafted tokens, -1 where not drafted or not known."""
    confidences: Floats
    """(rows, count, 3) in the order of `trace.schema.CONFIDENCES`; NaN where not known."""
    behind: Behind


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
class Outcome:
    """What the target made of a step's proposal."""

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
    judged: Bools | None = None
    """Rows whose proposal the target has verified, be it to draft nothing; None: all.

    In an engine a request may end, a draft may be dropped, and what is recorded, or decided in
    shadow mode, is never verified. Such a row may have `emitted` tokens; its `accepted` means
    nothing."""


class Policy(Protocol):
    """Decides, per step and per request, who drafts and how far.

    `adaspec.policy.base.BasePolicy` answers every stage so that nothing happens: inherit it and
    write the stages that matter. One object may be run many times; `start` begins each run anew.
    A policy may have one stage more, `keep` (see `BasePolicy`): those that lack it always keep.
    Whole numbers of any width are taken. `Setup.cost.step_s` prices a step.
    """

    name: str

    def start(self, setup: Setup) -> None:
        """Forget everything and prepare for a run."""

    def admit(self, arrival: Arrival) -> bool:
        """Whether the request holds the neural drafter (False is for good)."""

    def plan(self, batch: Batch) -> int:
        """The most forwards that the neural drafter runs this step; `proceed` may stop earlier.

        From 0 to `Setup.neural_cap`; 0 where no row holds the drafter. `settle` follows either way.
        """

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Whether to run one more forward."""

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """What is verified."""

    def learn(self, batch: Batch, proposal: Proposal, outcome: Outcome) -> None:
        """Take in the step's outcome."""

    def release(self, slots: Ints) -> None:
        """Forget requests that have left."""
