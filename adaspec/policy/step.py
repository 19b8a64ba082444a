"""Takes a policy of one's own through the steps of a replay.

    enter                       a request enters: does it hold the neural drafter?
    begin(rows) -> Step         looks up what the running requests' text says
    draft(step)                 how many forwards of the drafter run
    settle(step) -> Cut         what is verified, checked and cut
    learn(step, ..)             what the target made of it

Its caller owns the requests: their places in the index, how far each is, who holds the drafter. It
also sets `Step.source`, where drafted tokens come from, before `draft`, and has drafts verified.

A policy that breaks a rule raises a `PolicyFault`; what else a policy raises passes through.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import StepShape, batch_shape, step_s
from adaspec.draft.index import NgramIndex
from adaspec.errors import PolicyFault
from adaspec.policy.base import costs_of
from adaspec.policy.protocol import Batch, Bools, Drafts, Ints, Policy, Proposal, Report, Setup

Longs = NDArray[np.int64]

MAX_TOKENS = 1 << 12
"""Most tokens of the known text that a policy may ask for at once."""
_HUGE = 1 << 30


class Cut(NamedTuple):
    """A proposal as it can be verified, per row."""

    neural_len: Ints
    ngram_len: Ints
    start: Ints
    """Where copying starts, in the text and the drafted tokens behind it."""


class DraftSource(Protocol):
    """Where one step's drafted tokens come from."""

    def drafts(self, count: int) -> Drafts:
        """What a policy is shown after `count` forwards; its arrays are the policy's to spoil."""

    def copies(self, neural_len: Ints) -> tuple[Ints, Ints]:
        """Where copying behind `neural_len` drafted tokens starts, how much there is."""


@dataclass(slots=True)
class Step:
    """One step of some requests, from the known text to what is verified."""

    slots: Longs
    context_tokens: Ints
    """Known tokens per row, prompt included."""
    position: Ints
    holds_neural: Bools
    start: Ints
    """Where the most recent matches continue."""
    available: Ints
    batch: Batch
    """What the policy is shown, made of copies: it may write into it."""
    source: DraftSource | None = None
    forwards: int = 0
    proposal: Proposal | None = None


class KnownText:
    """The `Context` of a batch: look-ups in the text as far as it is known."""

    def __init__(self, index: NgramIndex, slots: Longs, start: Ints) -> None:
        """`start` says where the matches lie; no policy may hold these arrays."""
        self._index, self._slots, self._start = index, slots, start

    def tail(self, count: int) -> Ints:
        """The last `count` known tokens of every row, padded with -1 on the left."""
        return self._index.tail(self._slots, _checked_count(count))

    def candidate(self, count: int) -> Ints:
        """What every row's most recent match would copy, padded with -1."""
        return self._index.copies(self._slots, self._start, _checked_count(count))


class Executor:
    """Takes one policy through the steps of whatever runs the requests."""

    def __init__(self, policy: Policy, setup: Setup, index: NgramIndex) -> None:
        """Starts the policy; `index` holds the text of the running requests."""
        self.policy, self.setup, self.index = policy, setup, index
        self.costs = costs_of(policy, setup)
        self._is_new = np.zeros(setup.slots, np.bool_)
        policy.start(setup)

    def enter(self, slot: int, running: int) -> bool:
        """Whether a request that enters, one of so many, holds the neural drafter."""
        self._is_new[slot] = True
        return self.setup.neural_cap > 0 and bool(self.policy.holds_drafter(running))

    def begin(
        self, slots: Ints, prompt_tokens: Ints, position: Ints, holds_neural: Bools, reading: int
    ) -> Step:
        """A step of the requests in these slots of the index, as far as their text is known.

        It reads so many tokens of prompts besides. Rows hold the drafter as long as the policy
        says so of the load.
        """
        rows, holds = slots.astype(np.int64), holds_neural.copy()
        if holds.any() and not self.policy.holds_drafter(len(rows)):
            holds[:] = False
        matches = self.index.survey(rows, 0, 0)[0]
        start, available = matches.start.copy(), matches.available.copy()
        batch = Batch(
            slots.astype(np.int32),
            prompt_tokens.copy(),
            position.copy(),
            holds.copy(),
            self._is_new[rows],
            matches,
            KnownText(self.index, rows, start),
            reading,
        )
        self._is_new[rows] = False
        return Step(rows, prompt_tokens + position, position, holds, start, available, batch)

    def draft(self, step: Step) -> None:
        """Run as many forwards of the drafter as the policy asks for."""
        assert step.source is not None
        step.batch.drafts = step.source.drafts(0)
        name, limit = self.policy.name, self.setup.neural_cap
        asked = self.policy.forwards(step.batch)
        try:
            step.forwards = operator.index(asked)
        except TypeError:
            raise PolicyFault(
                f"policy '{name}' asks for {asked!r:.60} forwards, not a whole number"
            ) from None
        if not 0 <= step.forwards <= limit:
            raise PolicyFault(
                f"policy '{name}' asks for {step.forwards} forwards; 0 to {limit} can be run"
            )
        if step.forwards > 0 and not step.holds_neural.any():
            raise PolicyFault(f"policy '{name}' drafts where no request holds the neural drafter")
        step.batch.drafts = step.source.drafts(step.forwards)

    def settle(self, step: Step) -> Cut:
        """What is verified: the policy's proposal, cut to what can be."""
        proposal = step.proposal = self.policy.decide(step.batch)
        name, source, cap = self.policy.name, step.source, self.setup.cap
        assert source is not None
        neural_len, ngram_len = _checked_lengths(proposal, step.holds_neural, step.forwards, name)
        start, available = step.start, step.available
        if proposal.ngram_start is not None:
            start, available = _named_starts(
                proposal.ngram_start, step.context_tokens, neural_len, start, available, name
            )
        drafted = neural_len > 0
        if (drafted & (ngram_len > 0)).any():
            splice_start, splice_available = source.copies(neural_len)
            start = np.where(drafted, splice_start, start)
            available = np.where(drafted, splice_available, available)
        room = np.minimum(available, np.maximum(cap - neural_len, 0))
        return Cut(np.minimum(neural_len, cap), np.minimum(ngram_len, room), start)

    def learn(
        self, step: Step, cut: Cut, accepted: Ints, emitted: Ints, emitted_tokens: Ints
    ) -> StepShape:
        """Tell the policy what came of a step, with what it is charged; what the step did."""
        assert step.proposal is not None
        context, holds, rows = step.context_tokens, step.holds_neural, len(step.slots)
        drafted = cut.neural_len + cut.ngram_len
        shape: StepShape = batch_shape(
            rows, int(context.sum()), drafted, step.forwards, bool(holds.any())
        )
        # It may write into the arrays, so they are copies.
        report = Report(
            step.batch,
            step.proposal,
            drafted,
            cut.neural_len.copy(),
            accepted.copy(),
            emitted.copy(),
            emitted_tokens.copy(),
            float(step_s(self.costs, shape)),
        )
        self.policy.learn(report)
        return shape


def _checked_lengths(proposal: object, holds: Bools, forwards: int, name: str) -> tuple[Ints, Ints]:
    """Neural and copied lengths; a `PolicyFault` if a rule is broken."""
    rows, drafted = len(holds), forwards * holds
    if not isinstance(proposal, Proposal):
        raise PolicyFault(f"policy '{name}' decides on {proposal!r:.60}, not on a Proposal")
    neural_len = whole_numbers(proposal.neural_len, rows, f"policy '{name}' proposes neural_len")
    ngram_len = whole_numbers(proposal.ngram_len, rows, f"policy '{name}' proposes ngram_len")
    if (neural_len < 0).any() or (neural_len > drafted).any() or (ngram_len < 0).any():
        raise PolicyFault(
            f"policy '{name}' proposes more neural tokens than were drafted ({forwards}), or a "
            f"negative length: neural {neural_len.tolist()}, n-gram {ngram_len.tolist()}"
        )
    return neural_len, ngram_len


def _named_starts(
    named: object, context_tokens: Ints, neural_len: Ints, start: Ints, available: Ints, name: str
) -> tuple[Ints, Ints]:
    """Where rows copy from and how much there is, where a policy names places of its own."""
    places = whole_numbers(named, len(start), f"policy '{name}' proposes ngram_start")
    elsewhere = places >= 0
    if (places >= context_tokens).any():
        raise PolicyFault(f"policy '{name}' copies from {places.tolist()}, beyond the known text")
    if (places < -1).any() or (elsewhere & (neural_len > 0)).any():
        raise PolicyFault(
            f"policy '{name}' proposes ngram_start {places.tolist()}: -1 is the most recent match, "
            "and behind neural tokens no other can be named"
        )
    return (
        np.where(elsewhere, places, start),
        np.where(elsewhere, context_tokens - places, available),
    )


def splice_lengths(neural_len: object, drafted: int, holds: Bools) -> Ints:
    """The lengths that a policy asks to look behind, as our own array; a `PolicyFault` if not."""
    lengths = whole_numbers(neural_len, len(holds), "a look-up behind lengths")
    if (lengths < 0).any() or (lengths > drafted * holds).any():
        raise PolicyFault(
            f"a look-up behind {lengths.tolist()} neural tokens: {drafted} are drafted "
            f"for each of {int(holds.sum())} rows that hold the drafter"
        )
    return lengths


def whole_numbers(values: object, rows: int, what: str) -> Ints:
    """One whole number per row, as our own array; a `PolicyFault` otherwise."""
    numbers = np.array(values)
    if numbers.shape != (rows,) or numbers.dtype.kind not in "iu":
        raise PolicyFault(
            f"{what} of shape {numbers.shape} and type {numbers.dtype}: "
            f"one whole number for each of {rows} running rows is needed"
        )
    return numbers.clip(-_HUGE, _HUGE).astype(np.int32)


def _checked_count(count: object) -> int:
    if not isinstance(count, int | np.integer) or not 0 <= count <= MAX_TOKENS:
        raise PolicyFault(
            f"{count!r:.60} tokens of the known text: 0..{MAX_TOKENS} may be asked for"
        )
    return int(count)
