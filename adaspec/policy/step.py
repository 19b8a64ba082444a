"""Takes a policy through steps; knows neither engine nor recording.

    enter                       a request enters: does it hold the neural drafter?
    begin(rows) -> Step         looks up what the running requests' text says
    keep(step)                  do those that hold the drafter go on holding it?
    plan(step)                  how many forwards of the drafter
    forward_ran(step)           after each of them: another one?
    settle(step) -> Cut         what is verified, checked and cut
    report(step, ..), learn     what the target made of it

Its caller owns the requests: their places in the index, how far each is, who holds the drafter. It
also sets `Step.source`, where drafted tokens come from, before the first forward, and has drafts
verified.

A policy that breaks a rule raises a `PolicyFault`; what else a policy raises passes through.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from adaspec.cost.model import StepShape, batch_shape, step_s
from adaspec.draft.index import NgramIndex
from adaspec.errors import PolicyFault
from adaspec.policy.base import costs_of
from adaspec.policy.protocol import (
    Batch,
    Bools,
    Drafts,
    Floats,
    Ints,
    Policy,
    Proposal,
    Report,
    Setup,
)
from adaspec.policy.text import BehindDrafts, KnownText, Longs, whole_numbers
from adaspec.predict.features import CANDIDATE, TAIL


class Cut(NamedTuple):
    """A proposal as it can be verified, per row."""

    neural_len: Ints
    ngram_len: Ints
    start: Ints
    """Where copying starts, in the text and the drafted tokens behind it."""


class DraftSource(Protocol):
    """Where one step's drafted tokens come from: a recording, or an engine's drafter."""

    def drafts(self, count: int) -> Drafts:
        """What a policy is shown after `count` forwards; its arrays are the policy's to spoil."""

    def check(self, neural_len: Ints) -> None:
        """Raise a `PolicyFault` where what the policy has looked at rules these lengths out."""

    def copies(self, count: int, neural_len: Ints) -> tuple[Ints, Ints]:
        """Where copying behind `neural_len` of `count` drafted tokens starts, how much there is."""


@dataclass(slots=True)
class Step:
    """One engine step of some requests, from the known text to what is verified."""

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
    shown_forwards: int = 0
    """After how many forwards the policy was shown drafts last."""
    planned: int = 0
    """The most forwards that the policy asked for."""
    forwards: int = 0
    """Forwards run that the policy asked for."""
    proposal: Proposal | None = None
    cut: Cut | None = None
    shape: StepShape | None = None
    """What the step did, as far as its duration depends on it."""


class ShownDrafts:
    """A source whose drafted tokens are known: what follows them is looked up in the index."""

    def __init__(self, index: NgramIndex, step: Step, tokens: Ints, confidences: Floats) -> None:
        """(rows, most forwards) tokens and (.., 3) confidences, filled at least as far as asked."""
        self._index, self._slots, self._holds = index, step.slots, step.holds_neural
        self.tokens, self.confidences = tokens, confidences

    def drafts(self, count: int) -> Drafts:
        """What a policy is shown after `count` forwards.

        Compiled policies are compiled for contiguous arrays: another layout is another compile.
        """
        self._behind = BehindDrafts(self._index, self._slots, self.tokens, count, self._holds)
        tokens, confidences = self.tokens[:, :count].copy(), self.confidences[:, :count].copy()
        return Drafts(count, tokens, confidences, self._behind)

    def check(self, neural_len: Ints) -> None:
        """A policy may look behind any lengths before it chooses others."""

    def copies(self, count: int, neural_len: Ints) -> tuple[Ints, Ints]:
        """What the index says behind the tokens of the last `drafts`."""
        start, available = self._behind.copies(neural_len)
        ended = self.ended(neural_len)
        return start, available if ended is None else np.where(ended, 0, available)

    def ended(self, neural_len: Ints) -> Bools | None:
        """The rows of which so many drafted tokens end the text: no copy follows; None: no row."""
        return None


class Executor:
    """Takes one policy through the steps of whatever runs the requests."""

    def __init__(self, policy: Policy, setup: Setup, index: NgramIndex) -> None:
        """Starts the policy; `index` holds the text of the running requests."""
        self.policy, self.setup, self.index = policy, setup, index
        self._costs = costs_of(policy, setup)
        self._is_new = np.zeros(setup.slots, np.bool_)
        policy.start(setup)

    def enter(self, slot: int, running: int) -> bool:
        """Whether a request that enters, one of so many, holds the neural drafter."""
        self._is_new[slot] = True
        return self.setup.neural_cap > 0 and bool(self.policy.holds_drafter(running))

    def begin(
        self,
        slots: Ints,
        prompt_tokens: Ints,
        position: Ints,
        holds_neural: Bools,
        reading: int = 0,
    ) -> Step:
        """A step of the requests in these slots of the index, as far as their text is known.

        It reads so many tokens of prompts besides.
        """
        rows, holds = slots.astype(np.int64), holds_neural.copy()
        matches, *known = self.index.survey(rows, TAIL, CANDIDATE)
        start, available = matches.start.copy(), matches.available.copy()
        batch = Batch(
            slots.astype(np.int32),
            prompt_tokens.copy(),
            position.copy(),
            holds.copy(),
            self._is_new[rows],
            matches,
            KnownText(self.index, rows, start, *known),
            reading,
        )
        self._is_new[rows] = False
        context = prompt_tokens + position
        return Step(rows, context, position, holds, start, available, batch)

    def keep(self, step: Step) -> bool:
        """Whether requests go on holding the drafter; if not, no row holds it any more."""
        if not np.count_nonzero(step.holds_neural):
            return True
        if self.policy.holds_drafter(len(step.slots)):
            return True
        step.holds_neural[:] = False
        return False

    def plan(self, step: Step) -> int:
        """The most forwards of the drafter that the policy asks for."""
        assert step.source is not None
        step.batch.holds_neural[:] = step.holds_neural
        step.batch.drafts = step.source.drafts(0)
        step.planned = self._asked(step.batch)
        return step.planned

    def _asked(self, batch: Batch) -> int:
        name, limit = self.policy.name, self.setup.neural_cap
        holds = np.count_nonzero(batch.holds_neural)  # the policy may write into it
        asked = self.policy.forwards(batch)
        try:
            most = operator.index(asked)
        except TypeError:
            raise PolicyFault(
                f"policy '{name}' asks for {asked!r:.60} forwards, not a whole number"
            ) from None
        if not 0 <= most <= limit:
            raise PolicyFault(f"policy '{name}' asks for {most} forwards; 0 to {limit} can be run")
        if most > 0 and not holds:
            raise PolicyFault(f"policy '{name}' drafts where no request holds the neural drafter")
        return int(most)

    def forward_ran(self, step: Step) -> bool:
        """Count a forward whose tokens the source holds; whether the policy wants another."""
        step.forwards += 1
        if step.forwards >= step.planned:
            return False
        if not self.policy.stops_early:
            return True
        step.planned = min(step.planned, self._asked(self._shown(step)))
        return step.forwards < step.planned

    def settle(self, step: Step) -> Cut:
        """What is verified: the policy's proposal, cut to what can be."""
        proposal = self.policy.decide(self._shown(step))
        name, source = self.policy.name, step.source
        assert source is not None
        neural_len, ngram_len = _checked_lengths(proposal, step.holds_neural, step.forwards, name)
        start, available = step.start, step.available
        source.check(neural_len)
        if proposal.ngram_start is not None:
            start, available = _named_starts(
                proposal.ngram_start, step.context_tokens, neural_len, start, available, name
            )
        drafted = neural_len > 0
        if (drafted & (ngram_len > 0)).any():
            behind_start, behind_available = source.copies(step.forwards, neural_len)
            start = np.where(drafted, behind_start, start)
            available = np.where(drafted, behind_available, available)
        step.proposal, step.cut = proposal, Cut(neural_len, ngram_len, start)
        _cut_to(step.cut, available, self.setup.cap)
        return step.cut

    def report(
        self,
        step: Step,
        drafted: Ints,
        neural_drafted: Ints,
        accepted: Ints,
        emitted: Ints,
        emitted_tokens: Ints,
        forwards: int,
    ) -> Report:
        """What a policy learns of a step that ran so many forwards, with what it is charged."""
        assert step.proposal is not None
        context, holds, rows = step.context_tokens, step.holds_neural, len(step.slots)
        step.shape = batch_shape(rows, int(context.sum()), drafted, forwards, bool(holds.any()))
        return Report(
            step.batch,
            step.proposal,
            drafted,
            neural_drafted,
            accepted,
            emitted,
            emitted_tokens,
            float(step_s(self._costs, step.shape)),
        )

    def learn(self, report: Report) -> None:
        """Tell the policy what came of a step; it may write into the arrays of its copy."""
        self.policy.learn(
            replace(
                report,
                drafted=report.drafted.copy(),
                neural_drafted=report.neural_drafted.copy(),
                accepted=report.accepted.copy(),
                emitted=report.emitted.copy(),
                emitted_tokens=report.emitted_tokens.copy(),
            )
        )

    def _shown(self, step: Step) -> Batch:
        """What the policy is shown, with what was drafted so far."""
        assert step.source is not None
        if step.shown_forwards != step.forwards:
            step.batch.drafts = step.source.drafts(step.forwards)
            step.shown_forwards = step.forwards
        return step.batch


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


def _cut_to(cut: Cut, available: Ints, cap: int) -> None:
    """Shorten to what there is to copy, and to the cap."""
    behind = np.minimum(available, np.maximum(cap - cut.neural_len, 0))
    np.minimum(cut.ngram_len, behind, out=cut.ngram_len)
    np.minimum(cut.neural_len, cap, out=cut.neural_len)
