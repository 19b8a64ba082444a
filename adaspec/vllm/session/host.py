"""What the host decides for a batch, in an async engine from reports that come a step late.

It runs beside the device in every rank, from the same reports, so that all ranks decide alike:

    holds_drafter   do requests hold the neural drafter at this load?
    decide          how often the drafter runs, a token's price, and the drafters' factors
    budget          in an async engine: how many drafted tokens the next step verifies
    note            in an async engine: what the rows drafted, and how much of it fits the budget
    take_likeliest  in a sync engine: the same, by a budget made of what they drafted
    length          in an async engine that cannot trim: how long all drafts are
    learn           what came of a step's drafts
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import ASYNC
from adaspec.cost.model import batch_shape, step_s
from adaspec.jit import compiled
from adaspec.policy.learned import LearnedPolicy, planner_for
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import planner_at
from adaspec.policy.planner.budget import (
    decide_budget,
    keep_likeliest,
    note_ranked,
    rank,
    ranked_budget,
)
from adaspec.policy.planner.forwards import forwards_to_run, most_forwards
from adaspec.policy.planner.learning import factor_of, rate_of
from adaspec.policy.planner.state import CORRECTED, NEURAL, NGRAM, Planner
from adaspec.policy.protocol import Ints, Setup
from adaspec.vllm.events import DraftedStep, VerifiedStep
from adaspec.vllm.session.report import Layout

Floats = NDArray[np.float64]
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12)
"""The lengths that are tried where all drafts are of one length, beside the longest."""
_ROW_FADE = 0.998
"""What is kept, at each row that is drafted for, of what drafts of each length brought."""


class Host:
    """A learned policy's decisions on a whole batch."""

    def __init__(self, policy: LearnedPolicy, setup: Setup) -> None:
        self._policy, self._kept = policy, planner_for(policy, setup)
        self._pads = setup.engine == ASYNC
        """Whether the target runs on the whole budget, even if fewer tokens were drafted."""
        self._neural_cap = self._planner.run["neural_cap"][0]
        self._lengths = np.array([each for each in LENGTHS if each < setup.cap] + [setup.cap])
        self._gains, self._rows = np.zeros(setup.cap + 1), 0.0
        self._price = self._rate = 0.0

    @property
    def _planner(self) -> Planner:
        return self._kept.value

    @property
    def most_forwards(self) -> int:
        """More forwards than these are never decided."""
        return most_forwards(self._policy.forwards_by_load, int(self._neural_cap))

    def holds_drafter(self, running: int) -> bool:
        """Whether requests hold the neural drafter where so many run."""
        return bool(stages.holds_drafter(self._kept.address, running))

    def decide(self, step: DraftedStep, context: int) -> DraftedStep:
        """Say of a step what is decided before the device has chosen; it knows so many tokens."""
        running = max(len(step.slots), 1)
        batch_state = self._planner.batch_state
        self._rate, *factors = _settings(self._kept.address, running, context)
        if step.holds_neural.any():
            step.forwards = forwards_to_run(
                batch_state.forwards_by_load, batch_state.number, running, self._neural_cap
            )
        step.price, step.factors = float(batch_state.step["price"][0]), np.array(factors)
        return step

    def budget(self, running: int, reading: int = 0) -> int:
        """How many drafted tokens a step of so many rows verifies that reads so much of prompts."""
        planner, cap = self._planner, int(self._planner.run["cap"][0])
        return int(
            decide_budget(planner.batch_state, planner.costs, self._rate, running, reading, cap)
        )

    def length(self) -> int:
        """How long drafts are if all are of one length: what has paid most on average."""
        if self._rows == 0:
            return int(self._lengths[-1])
        gains = self._gains[self._lengths] / self._rows - self._price * self._lengths
        return int(self._lengths[np.argmax(gains)])

    def note(self, step: DraftedStep, trims: bool) -> None:
        """Take in what a step's rows drafted, and which of it is verified."""
        report, planner = step.drafts, self._planner
        rows = len(step.slots)
        if not trims:
            fade = _ROW_FADE**rows
            self._gains *= fade
            self._gains[1:] += report.survival.sum(axis=0).cumsum()
            self._rows = self._rows * fade + rows
            self._price = float(self._rate * planner.costs.mean_token_s)
            each = step.budget // max(rows, 1)
            step.lengths = np.minimum(report.length, each).astype(np.int32)
            return
        self._rank(step)
        self._keep(step)

    def take_likeliest(self, step: DraftedStep) -> None:
        """Say how much of what a step has just drafted is verified."""
        self._rank(step)
        step.budget = self.budget_of_drafts(step)
        self._keep(step)

    def budget_of_drafts(self, step: DraftedStep) -> int:
        """How many of the tokens that a step has drafted are verified."""
        planner, rows = self._planner, len(step.slots)
        return int(ranked_budget(planner.batch_state, planner.costs, self._rate, rows))

    def _rank(self, step: DraftedStep) -> None:
        report, batch_state = step.drafts, self._planner.batch_state
        step.lengths = report.length.astype(np.int32)
        rank(batch_state, report.survival, step.lengths)
        note_ranked(batch_state, len(step.slots))

    def _keep(self, step: DraftedStep) -> None:
        """Cut the ranked drafts to the budget."""
        report, batch_state = step.drafts, self._planner.batch_state
        before = float(batch_state.step["price"][0])
        keep_likeliest(batch_state, report.survival, step.lengths, step.budget)
        if step.budget_limited:  # what did not fit was no choice
            batch_state.step["price"] = before

    def learn(self, verified: VerifiedStep) -> None:
        """Take in what became of a step's drafts."""
        step, planner = verified.step, self._planner
        report = step.drafts
        rows, state, facts = len(step.slots), planner.state, planner.rows
        planner.run["rows"] = rows
        facts.slots[:rows] = step.slots
        facts.prompt_tokens[:rows] = step.prompt_tokens
        facts.position[:rows] = report.context - step.prompt_tokens
        facts.holds_neural[:rows] = step.holds_neural
        facts.length[:rows] = 0
        state.expected[:rows] = expected_tokens(report.survival, report.neural, verified.drafted)
        state.neural_gain[:rows] = report.neural_gain
        state.record["factor"] = step.factors
        known = verified.known
        shape = batch_shape(
            int(known.sum()),
            int(report.context[known].sum()),
            verified.drafted,
            step.forwards,
            bool(step.holds_neural.any()),
            step.budget if self._pads else 0,
        )
        if known.any():
            stages.learn(
                self._kept.address,
                verified.emitted_tokens,
                verified.drafted,
                verified.neural_drafted,
                verified.accepted,
                step.forwards,
                float(step_s(planner.costs, shape)),
            )


@compiled
def expected_tokens(survival: Floats, neural: Ints, drafted: Ints) -> Floats:
    """(rows, CORRECTED) tokens expected to be accepted of so many verified ones, by drafter.

    What is spliced on counts for neither.
    """
    expected = np.zeros((len(drafted), CORRECTED))
    for row in range(len(drafted)):
        source = NEURAL if neural[row] > 0 else NGRAM
        last = min(drafted[row], survival.shape[1])
        if neural[row] > 0:
            last = min(last, neural[row])
        expected[row, source] = survival[row, :last].sum()
    return expected


@compiled
def _settings(address: int, running: int, context: int) -> tuple[float, float, float]:
    """The running rate, and the factors of copies and of neural drafts."""
    planner = planner_at(address)
    state, costs = planner.state, planner.costs
    return (
        rate_of(state, costs, running, context),
        factor_of(state, NGRAM),
        factor_of(state, NEURAL),
    )


def warm_up(policy: LearnedPolicy, setup: Setup) -> None:
    """Take every decision once, so that no request waits for a compiler."""
    host, one = Host(policy, setup), np.ones(1, np.int32)
    host.holds_drafter(1)
    known = np.ones(1, np.bool_)
    step = host.decide(DraftedStep(np.zeros(1, np.int32), one, known), 1)
    step.budget = host.budget(1)
    layout = Layout(setup.cap, 0)
    step.report = layout.unpacked(np.ones((1, layout.width(0)), np.float32), 0)
    host.note(step, True)
    host.take_likeliest(step)
    host.learn(VerifiedStep(step, known, one, one, one, one))
