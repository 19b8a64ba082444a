"""What the host decides for a batch, in an async engine from reports that come a step late.

It runs beside the device in every rank, from the same reports, so that all ranks decide alike, by
the functions of `policy.decision`:

    holds_drafter   do requests hold the neural drafter at this load?
    decide          how often the drafter runs, and at what price rows choose
    budget          in an async engine: how many drafted tokens the next step verifies
    note            in an async engine: what the rows drafted, and how much of it fits the budget
    take_likeliest  in a sync engine: the same, by a budget made of what they drafted
    length          in an async engine: how long drafts are at most, or where it cannot trim, all
    learn           what came of a step's drafts
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost import ASYNC
from adaspec.cost.model import step_s, step_shape, target_s
from adaspec.policy import decision
from adaspec.policy.budget import (
    ALL,
    LAST,
    decide_budget,
    forwards_to_run,
    most_forwards,
    most_in_time,
    new_state,
    room_of_row,
    worth,
)
from adaspec.policy.choice import ROW
from adaspec.policy.protocol import LearnedPolicy, Setup
from adaspec.policy.static import StaticRule
from adaspec.predict.model import LONGEST_NGRAM
from adaspec.vllm.events import DraftedStep, VerifiedStep
from adaspec.vllm.session.report import Layout

Longs = NDArray[np.int64]
LENGTHS = (0, 1, 2, 3, 5, 8, 16)
"""The lengths that are tried where all drafts are of one length, beside the longest: an engine
captures a graph of each."""
_LOAD_STEPS, _EDGE = 64, 0.1
"""The load is a mean over about so many steps, and another one from so large a share on."""
_ROW_FADE = 0.998
"""What is kept, at each row that is drafted for, of what drafts of each length brought."""


class BatchDecider:
    """A learned policy's decisions on a whole batch."""

    def __init__(self, policy: LearnedPolicy, setup: Setup) -> None:
        self._cap = min(policy.cap, setup.cap)
        neural_cap = min(policy.neural_cap, setup.neural_cap, self._cap)
        self._setup, self._most_passes = setup, setup.passes(neural_cap)
        self._tokens_of_pass = neural_cap if setup.in_one_pass else 1
        self.costs = setup.cost.constants(setup.longest_s)
        self.state = new_state(setup.slots, LONGEST_NGRAM, policy.forwards_by_load)
        """What is remembered of earlier steps."""
        self._pads = setup.engine == ASYNC
        """Whether the target runs on the whole budget, even if fewer tokens were drafted."""
        self._longest = self._cap
        self._lengths = lengths_up_to(setup.cap)
        self._gains, self._rows = np.zeros(setup.cap + 1), 0.0
        self._load, self._holds = 0.0, True
        self._context, self._bounded = 0.0, False
        """Known tokens of a row, on average."""

    def take_slowness(self, slowness: float) -> None:
        """Heed the operator's bound where steps take so many times as long as the costs say."""
        if self._setup.longest_s is not None:
            self.costs = self.costs._replace(longest_s=self._setup.longest_s / slowness)

    @property
    def most_forwards(self) -> int:
        """The drafter is never decided to run oftener in a step."""
        return int(most_forwards(self.state.forwards_by_load, self._most_passes))

    def holds_drafter(self, running: int) -> bool:
        """Whether requests hold the neural drafter where so many run.

        Whoever runs without it has lost it. So it is the load of the last steps that counts, and it
        has to be clearly another before anything changes.
        """
        load = (self._load or running) * (1 - _EDGE if self._holds else 1 + _EDGE)
        self._holds = self._passes(max(round(load), 1), int(self._context * load)) > 0
        return self._holds

    def _passes(self, running: int, context: int) -> int:
        """How often the drafter runs in a step of so many rows and known tokens."""
        most = self._most_passes
        return int(decision.decide_forwards(self.state, self.costs, running, context, most))

    def decide(self, step: DraftedStep, context: int) -> DraftedStep:
        """Say of a step what is decided before the device has chosen; it knows so many tokens."""
        running, state = max(len(step.slots), 1), self.state
        self._load += (running - self._load) / (_LOAD_STEPS if self._load else 1)
        step.settings = decision.decide(state, self.costs, running, context)
        self._context = context / running
        passes, wanted = self._passes(running, context), (state.forwards_by_load, state.number)
        step.bounded = passes < forwards_to_run(*wanted, running, self._most_passes)
        if step.holds_neural.any():
            step.forwards = passes * self._tokens_of_pass
        return step

    def budget(self, running: int, reading: int = 0) -> int:
        """How many drafted tokens a step of so many rows verifies that reads so much of prompts."""
        context = int(self._context * running)
        passes = self._passes(running, context) if self._holds else 0
        beside = reading, self._cap, context, passes
        budget = int(decide_budget(self.state, self.costs, running, *beside))
        self._bounded = self._is_bounded(budget, running, reading, context, passes)
        self._longest = int(room_of_row(budget, running, self._cap))
        return budget

    def _is_bounded(self, budget: int, *step: int) -> bool:
        """Whether a step of so many rows, prompt and known tokens and passes holds no more."""
        return bool(most_in_time(self.costs, *step, budget + 1) <= budget)

    def length(self, trims: bool) -> int:
        """How long drafts are at most; where they are not trimmed, all are so long.

        Then it is the length that is worth most by what drafts have brought on average.
        """
        if trims:
            return self._longest
        rows, rate = max(round(self._load), 1), float(self.state.step["rate"][0])
        context = int(self._context * rows)
        beside = 0, context, self._passes(rows, context) if self._holds else 0
        most = most_in_time(self.costs, rows, *beside, rows * self._lengths[-1])
        in_time = [each for each in self._lengths if rows * each <= most]
        if self._rows == 0:
            return in_time[-1]
        brings = rows / self._rows * self._gains
        return max(
            in_time,
            key=lambda each: worth(brings[each], rate, target_s(self.costs, rows * (1 + each))),
        )

    def note(self, step: DraftedStep, trims: bool) -> None:
        """Take in what a step's rows drafted, and which of it is verified."""
        if trims:
            price = float(self.state.step["price"][0])
            step.bounded |= self._bounded
            self._verify(step, step.budget)
            if step.cut_by_engine:  # what did not fit was no choice
                self.state.step["price"] = price
            return
        report, rows = step.drafts, len(step.slots)
        fade = _ROW_FADE**rows
        self._gains *= fade
        self._gains[1:] += report.survival.sum(axis=0).cumsum()
        self._rows = self._rows * fade + rows
        step.verified = np.minimum(report.offered, step.budget // max(rows, 1)).astype(np.int32)

    def take_likeliest(self, step: DraftedStep) -> None:
        """Say how much of what a step has just drafted is verified."""
        self._verify(step, decision.OF_DRAFTS)
        beside = 0, int(step.drafts.context.sum()), self._setup.passes(step.forwards)
        step.bounded |= self._is_bounded(step.budget, len(step.slots), *beside)

    def _verify(self, step: DraftedStep, budget: int) -> None:
        """Cut drafts to the budget."""
        lengths = step.drafts.offered.astype(np.int64)
        if self._pads:
            lengths = np.minimum(lengths, self._longest)  # there was no room for more
        of_drafts = step.drafts.survival, lengths
        # What prompts the next step reads, a sync engine does not know yet.
        beside = 0, int(step.drafts.context.sum()), self._setup.passes(step.forwards)
        step.budget = int(decision.verify(self.state, self.costs, *of_drafts, budget, *beside))
        step.verified = lengths.astype(np.int32)

    def learn(self, verified: VerifiedStep) -> None:
        """Take in what became of a step's drafts."""
        step, known = verified.step, verified.known
        if not known.any():
            return
        rows = np.zeros(len(step.slots), ROW)
        rows["context"], rows["holds_neural"] = step.drafts.context, step.holds_neural
        rows["gain"] = step.drafts.gain
        if self._setup.in_one_pass:  # the last forward drafted all tokens
            rows["gain"][:, LAST] = step.drafts.gain[:, ALL]
        passes = self._setup.passes(step.forwards)
        rows["neural"] = verified.neural_drafted
        rows["copied"] = verified.drafted - verified.neural_drafted
        rows["accepted"], rows["emitted"] = verified.accepted, verified.emitted_tokens
        shape = step_shape(
            int(known.sum()),
            int(step.drafts.context[known].sum()),
            int(verified.drafted.sum()),
            passes,
            bool(step.holds_neural.any()),
            step.budget if self._pads else 0,
        )
        decision.learn(
            self.state,
            self.costs,
            rows,
            step.drafts.survival,
            step.settings,
            passes,
            self._most_passes,
            float(step_s(self.costs, shape)),
        )


def lengths_up_to(longest: int) -> list[int]:
    """The lengths that are tried in an engine that cannot trim drafts of so many tokens."""
    return [each for each in LENGTHS if each < longest] + [longest]


def warm_up(policy: LearnedPolicy, setup: Setup) -> None:
    """Take every decision once, so that no request waits for a compiler."""
    host, one = BatchDecider(policy, setup), np.ones(1, np.int32)
    host.holds_drafter(1)
    known = np.ones(1, np.bool_)
    step = host.decide(DraftedStep(np.zeros(1, np.int32), one, known), 1)
    step.budget = host.budget(1)
    layout = Layout(setup.cap, 0)
    step.report = layout.unpacked(np.ones((1, layout.width(0)), np.float32), 0)
    host.note(step, True)
    host.note(step, False)
    host.length(False)
    host.take_likeliest(step)
    host.learn(VerifiedStep(step, known, one, one, one, one))


class RuleDecider(BatchDecider):
    """A rule's decisions on a whole batch, which are the same in every step."""

    def __init__(self, policy: LearnedPolicy, setup: Setup, rule: StaticRule) -> None:
        """`policy` has the memory that steps are counted in."""
        super().__init__(policy, setup)
        self._forwards = min(rule.neural_len, setup.neural_cap, setup.cap)
        self._longest = min(rule.longest_draft, setup.cap)

    @property
    def most_forwards(self) -> int:
        """The drafter is never decided to run oftener in a step."""
        return self._setup.passes(self._forwards)

    def holds_drafter(self, running: int) -> bool:
        """Whether requests hold the neural drafter where so many run."""
        return self._forwards > 0

    def decide(self, step: DraftedStep, context: int) -> DraftedStep:
        """Say of a step what is decided before the device has chosen."""
        step.forwards = self._forwards if step.holds_neural.any() else 0
        return step

    def budget(self, running: int, reading: int = 0) -> int:
        """How many drafted tokens a step of so many rows verifies that reads so much of prompts."""
        return running * self._longest

    def take_likeliest(self, step: DraftedStep) -> None:
        """Say how much of what a step has just drafted is verified: all."""
        self._verify(step, int(step.drafts.offered.sum()))

    def length(self, trims: bool) -> int:
        """How long drafts are, trimmed or not: all are scheduled as long as the longest."""
        return self._longest
