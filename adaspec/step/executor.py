"""Takes a policy through engine steps; knows neither engine nor recording.

    admit                       a request enters: does it hold the neural drafter?
    begin(rows) -> Step         looks up what the running requests' text says
    keep(step)                  do those that hold the drafter go on holding it?
    plan(step)                  at most how many forwards of the drafter
    forward_ran(step)           after each of them: another one?
    settle(step) -> Cut         what is verified, checked and cut
                                (in an async engine within the budget that `plan` asked for)
    outcome(step, ..), learn    what the target made of it
    release                     requests leave

Its caller owns the requests: their places in the index, how far each is, who holds the drafter. It
also sets `Step.source`, where drafted tokens come from, before the first forward, and has drafts
verified. `plan` uses nothing but the step's batch, and everything later reads the step alone: a
caller may plan a step, and draft and settle it when others have passed in between.

A policy that breaks a rule raises a `PolicyFault`; what else a policy raises passes through.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from adaspec.cost.engine import ASYNC
from adaspec.cost.model import StepShape, batch_shape, step_s
from adaspec.draft.index import NgramIndex
from adaspec.errors import PolicyFault
from adaspec.policy.base import budget_of, costs_of, keeps_drafter
from adaspec.policy.protocol import (
    Arrival,
    Batch,
    Bools,
    Drafts,
    Floats,
    Ints,
    Outcome,
    Policy,
    Proposal,
    Setup,
)
from adaspec.predict.features import CANDIDATE, TAIL
from adaspec.step.cut import Cut, checked_lengths, named_starts, trim
from adaspec.step.text import BehindDrafts, KnownText, Longs

NO_ROOM = np.zeros(0, np.int32)
"""Stands for rows that have no limit of their own."""


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

    shows: Batch | Callable[[], Batch]
    """`batch`, or what makes it when it is asked for first."""
    slots: Longs
    context_tokens: Ints
    holds_neural: Bools
    start: Ints
    """Where the most recent match continues."""
    available: Ints
    source: DraftSource | None = None
    planned: int = 0
    """The most forwards that the policy asked for."""
    budget: int | None = None
    """The most tokens that all drafts together may hold, which the step pays for; None: as many as
    they hold. Only in an async engine."""
    forwards: int = 0
    """Forwards run that the policy asked for."""
    proposal: Proposal | None = None
    cut: Cut | None = None
    shape: StepShape | None = None
    """What the step did, as far as its duration depends on it."""
    shown: Drafts | None = None
    """What the policy was shown last, after `shown_forwards`."""
    shown_forwards: int = -1

    @property
    def batch(self) -> Batch:
        """What the policy is shown and plans on; it may write into it: the rest rests on copies."""
        if not isinstance(self.shows, Batch):
            self.shows = self.shows()
        return self.shows


class ShownDrafts:
    """A source whose drafted tokens are known: what follows them is looked up in the index."""

    def __init__(self, index: NgramIndex, step: Step, tokens: Ints, confidences: Floats) -> None:
        """(rows, most forwards) tokens and (.., 3) confidences, filled at least as far as asked."""
        self._index, self._slots, self._holds = index, step.slots, step.holds_neural
        self.tokens, self.confidences = tokens, confidences

    def first(self, count: int) -> tuple[Ints, Floats]:
        """Tokens and confidences of the first `count` forwards, as arrays for the policy.

        Compiled policies are compiled for contiguous arrays: another layout is another compile.
        """
        return self.tokens[:, :count].copy(), self.confidences[:, :count].copy()

    def drafts(self, count: int) -> Drafts:
        """What a policy is shown after `count` forwards."""
        self._behind = BehindDrafts(self._index, self._slots, self.tokens, count, self._holds)
        return Drafts(count, *self.first(count), self._behind)

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
        policy.start(setup)

    def admit(self, slot: int, prompt_tokens: int, running: int) -> bool:
        """Whether a request that enters holds the neural drafter."""
        admitted = bool(self.policy.admit(Arrival(slot, prompt_tokens, running)))
        return admitted and self.setup.neural_cap > 0

    def begin(
        self,
        slots: Ints,
        prompt_tokens: Ints,
        position: Ints,
        holds_neural: Bools,
        reading: int = 0,
    ) -> Step:
        """A step of the requests in these slots of the index, as far as their text is known.

        It reads so many tokens of prompts besides. The policy is shown these very arrays, and may
        write into them.
        """
        indexed = slots.astype(np.int64)
        matches, tail, candidate = self.index.survey(indexed, TAIL, CANDIDATE)
        start, available = matches.start.copy(), matches.available.copy()
        batch = Batch(
            slots,
            prompt_tokens,
            position,
            holds_neural,
            matches,
            KnownText(self.index, indexed, start, tail, candidate),
            reading,
        )
        context_tokens = prompt_tokens + position
        return Step(batch, indexed, context_tokens, holds_neural.copy(), start, available)

    def keep(self, step: Step, exempt: Bools | None = None) -> bool:
        """Whether requests go on holding the drafter; if not, only `exempt` rows hold it still."""
        if not np.count_nonzero(step.holds_neural) or keeps_drafter(self.policy, step.batch):
            return True
        self._take_drafter(step, exempt)
        return False

    def _take_drafter(self, step: Step, exempt: Bools | None) -> None:
        step.holds_neural[:] = False if exempt is None else step.holds_neural & exempt
        step.batch.holds_neural[:] = step.holds_neural

    def plan(self, step: Step) -> int:
        """The most forwards of the drafter that the policy asks for."""
        name, limit = self.policy.name, self.setup.neural_cap
        planned = self.policy.plan(step.batch)
        try:
            most = operator.index(planned)
        except TypeError:
            raise PolicyFault(
                f"policy '{name}' plans {planned!r:.60} neural tokens, not a whole number"
            ) from None
        if not 0 <= most <= limit:
            raise PolicyFault(
                f"policy '{name}' plans {most} neural tokens; 0 to {limit} are possible"
            )
        if most > 0 and not np.count_nonzero(step.holds_neural):
            raise PolicyFault(f"policy '{name}' drafts where no request holds the neural drafter")
        step.planned = int(most)
        if self.setup.engine == ASYNC:
            step.budget = self._budget_of(step)
        return step.planned

    def _budget_of(self, step: Step) -> int:
        """The policy's budget for the step."""
        name, answer = self.policy.name, budget_of(self.policy, step.batch)
        most = len(step.slots) * self.setup.cap
        if not 0 <= answer <= most:
            raise PolicyFault(f"policy '{name}' budgets {answer} tokens; 0 to {most} are possible")
        return answer

    def forward_ran(self, step: Step) -> bool:
        """Count a forward whose tokens the source holds; whether the policy wants another.

        An async engine runs all that were planned: there is nobody to ask.
        """
        step.forwards += 1
        if step.forwards >= step.planned:
            return False
        if self.setup.engine == ASYNC:
            return True
        return bool(self.policy.proceed(step.batch, self._drafts_of(step)))

    def settle(self, step: Step, room: Ints | None = None, lenient: bool = False) -> Cut:
        """What is verified: the policy's proposal, cut to what can be.

        `room` is the most tokens that each row's draft may hold, where the rows limit that;
        `lenient` shortens neural lengths that were not drafted, where not the policy ended that.
        """
        proposal = self.policy.settle(step.batch, self._drafts_of(step))
        name, source = self.policy.name, step.source
        assert source is not None
        neural_len, ngram_len, splices = checked_lengths(
            proposal, step.holds_neural, step.forwards, name, lenient
        )
        start, available = step.start, step.available
        source.check(neural_len)
        if proposal.ngram_start is not None:
            start, available = named_starts(
                proposal.ngram_start, step.context_tokens, neural_len, start, available, name
            )
        if splices:
            behind_start, behind_available = source.copies(step.forwards, neural_len)
            drafted = neural_len > 0
            start = np.where(drafted, behind_start, start)
            available = np.where(drafted, behind_available, available)
        trim(neural_len, ngram_len, available, self.setup.cap, NO_ROOM if room is None else room)
        if step.budget is not None and neural_len.sum() + ngram_len.sum() > step.budget:
            raise PolicyFault(
                f"policy '{name}' drafts {neural_len.sum() + ngram_len.sum()} tokens, more than "
                f"its budget of {step.budget}"
            )
        step.proposal, step.cut = proposal, Cut(neural_len, ngram_len, start)
        return step.cut

    def copied(self, step: Step) -> Ints:
        """The tokens that are copied, row by row of what was settled on; -1 behind them."""
        cut, source = step.cut, step.source
        assert cut is not None and isinstance(source, ShownDrafts)
        return self.index.propose(
            step.slots, cut.start, cut.ngram_len, source.tokens, cut.neural_len
        )

    def outcome(
        self,
        step: Step,
        drafted: Ints,
        neural_drafted: Ints,
        accepted: Ints,
        emitted: Ints,
        emitted_tokens: Ints,
        forwards: int,
        known: Bools | None = None,
        judged: Bools | None = None,
    ) -> Outcome:
        """What a policy learns of a step that ran so many forwards, with what it is charged.

        `known` are the rows of which anything is known; None: all. The others were in no batch of
        the target, and are not charged.
        """
        context, holds, rows = step.context_tokens, step.holds_neural, len(step.slots)
        if known is not None:
            context, holds, rows = context[known], holds[known], int(known.sum())
        step.shape = batch_shape(
            rows,
            int(context.sum()),
            drafted,
            forwards,
            bool(holds.any()),
            step.budget or 0,
        )
        seconds = step_s(self._costs, step.shape)
        return Outcome(
            drafted, neural_drafted, accepted, emitted, emitted_tokens, float(seconds), judged
        )

    def learn(self, step: Step, outcome: Outcome) -> None:
        """Tell the policy the outcome of its proposal; it may write into the arrays of its copy."""
        assert step.proposal is not None
        given = replace(
            outcome,
            drafted=outcome.drafted.copy(),
            neural_drafted=outcome.neural_drafted.copy(),
            accepted=outcome.accepted.copy(),
            emitted=outcome.emitted.copy(),
            emitted_tokens=outcome.emitted_tokens.copy(),
        )
        self.policy.learn(step.batch, step.proposal, given)

    def release(self, slots: Ints) -> None:
        """Have the policy forget requests that have left."""
        self.policy.release(slots)

    def _drafts_of(self, step: Step) -> Drafts:
        """What the policy is shown, the same object as long as no other forward has run."""
        if step.shown is None or step.shown_forwards != step.forwards:
            assert step.source is not None
            step.shown, step.shown_forwards = step.source.drafts(step.forwards), step.forwards
        return step.shown
