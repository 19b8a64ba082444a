"""What the host decides for a batch, in an async engine from reports that come a step late.

It runs beside the device in every rank, from the same reports, so that all ranks decide alike:

    holds_drafter   do requests hold the neural drafter at this load?
    decide          how often the drafter runs, a token's price, and the sources' factors
    budget          in an async engine: how many drafted tokens the next step verifies
    note            in an async engine: what the rows drafted, and how much of it fits the budget
    take_likeliest  in a sync engine: the same, by a budget made of what they drafted
    length          in an async engine that cannot trim: how long all drafts are
    learn           what came of a step's drafts
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import ASYNC
from adaspec.cost.model import batch_shape, step_s, token_price
from adaspec.jit import compiled
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import planner_at
from adaspec.policy.planner.budget import (
    decide_budget,
    forwards_at,
    keep_likeliest,
    note_ranked,
    rank,
    ranked_budget,
)
from adaspec.policy.planner.learning import factor_of, rate_of
from adaspec.policy.planner.state import NEURAL, NGRAM, SPLICE, Planner
from adaspec.policy.protocol import Bools, Ints, Setup
from adaspec.vllm.session.report import Layout, Report

Floats = NDArray[np.float64]
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12)
"""The lengths that are tried where all drafts are of one length, beside the longest."""
_ROW_FADE = 0.998
"""What is kept, at each row that is drafted for, of what drafts of each length brought."""


@dataclass(slots=True)
class Decided:
    """A step's rows that were drafted for, with what the host decided for them."""

    slots: Ints
    prompt_tokens: Ints
    holds_neural: Bools
    forwards: int
    price: float
    """A token's worth, at which the rows chose."""
    factors: NDArray[np.float64]
    budget: int = 0
    """How many of their tokens the next step verified, all rows together."""
    was_cut: bool = False
    """Whether that is less than the policy wanted, for want of room or by a limit."""
    report: Report | None = None
    """What the device said of them, of just these rows; None until it has come."""
    lengths: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """How many tokens of each draft fit the budget."""
    step_s: float = 0.0
    """The seconds of the step that verified them, by the cost model."""
    expected: Floats = field(default_factory=lambda: np.zeros((0, 3)))
    """(rows, 3) how many verified tokens of each source were expected to be accepted."""

    def reasons(self, rows: int) -> tuple[float, list[dict[str, Any]]]:
        """What is known of why rows were decided so: a token's price, and facts of each row."""
        report = self.report
        assert report is not None
        expected = expected_tokens(report.survival, report.neural, self.lengths)
        return self.price, [
            {
                "expected_accepted": float(expected[row, :SPLICE].sum()),
                "survival": report.survival[row][: report.length[row]].tolist(),
            }
            for row in range(rows)
        ]


@dataclass(frozen=True, slots=True)
class Verified:
    """What became of the drafts of a step, row by row."""

    known: Bools
    """Whether the row was verified by the next step."""
    drafted: Ints
    neural_drafted: Ints
    accepted: Ints
    emitted_tokens: Ints


class Host:
    """A learned policy's decisions on a whole batch."""

    def __init__(self, policy: LearnedPolicy, setup: Setup) -> None:
        policy.start(setup)
        self._policy = policy
        self._pads = setup.engine == ASYNC
        """Whether the target runs on the whole budget, even if fewer tokens were drafted."""
        self._neural_cap = policy.planner.limits["neural_cap"][0]
        self._lengths = np.array([each for each in LENGTHS if each < setup.cap] + [setup.cap])
        self._gains, self._rows = np.zeros(setup.cap + 1), 0.0
        self._price = self._rate = 0.0

    @property
    def _planner(self) -> Planner:
        return self._policy.planner

    @property
    def most_forwards(self) -> int:
        """More forwards than these are never decided."""
        return min(int(self._policy.forwards_by_load[:, 1].max()), int(self._neural_cap))

    def holds_drafter(self, running: int) -> bool:
        """Whether requests hold the neural drafter where so many run."""
        return self._policy.holds_drafter(running)

    def decide(
        self, slots: Ints, prompt_tokens: Ints, holds_neural: Bools, context: int
    ) -> Decided:
        """What is decided for a step of these rows before the device has chosen."""
        running = max(len(slots), 1)
        ranking = self._planner.ranking
        self._rate, *factors = _settings(self._policy.address, running, context)
        forwards = 0
        if holds_neural.any():
            forwards = min(int(forwards_at(ranking, running)), int(self._neural_cap))
        price = float(ranking.step["price"][0])
        return Decided(slots, prompt_tokens, holds_neural, forwards, price, np.array(factors))

    def budget(self, running: int, reading: int = 0) -> int:
        """How many drafted tokens a step of so many rows verifies that reads so much of prompts."""
        planner, cap = self._planner, int(self._planner.limits["cap"][0])
        return int(decide_budget(planner.ranking, planner.costs, self._rate, running, reading, cap))

    def length(self) -> int:
        """How long drafts are if all are of one length: what has paid most on average."""
        if self._rows == 0:
            return int(self._lengths[-1])
        gains = self._gains[self._lengths] / self._rows - self._price * self._lengths
        return int(self._lengths[np.argmax(gains)])

    def note(self, decided: Decided, trims: bool) -> None:
        """Take in what a step's rows drafted, and which of it is verified."""
        report, planner = decided.report, self._planner
        assert report is not None
        rows = len(decided.slots)
        if not trims:
            fade = _ROW_FADE**rows
            self._gains *= fade
            self._gains[1:] += report.survival.sum(axis=0).cumsum()
            self._rows = self._rows * fade + rows
            self._price = float(token_price(planner.costs, self._rate))
            each = decided.budget // max(rows, 1)
            decided.lengths = np.minimum(report.length, each).astype(np.int32)
            return
        self._rank(decided)
        self._keep(decided)

    def take_likeliest(self, decided: Decided, most: int | None, reading: int) -> None:
        """Say how much of what a step has just drafted is verified, at most so many tokens.

        The step that verifies it reads so many tokens of prompts.
        """
        self._rank(decided)
        wanted = self.budget_of_drafts(decided, reading)
        decided.budget = wanted if most is None else min(wanted, most)
        decided.was_cut = decided.budget < wanted
        self._keep(decided)

    def budget_of_drafts(self, decided: Decided, reading: int) -> int:
        """How many of the tokens that a step has drafted are verified."""
        planner, tokens = self._planner, len(decided.slots) + reading
        return int(ranked_budget(planner.ranking, planner.costs, self._rate, tokens))

    def _rank(self, decided: Decided) -> None:
        report, ranking = decided.report, self._planner.ranking
        assert report is not None
        decided.lengths = report.length.astype(np.int32)
        rank(ranking, report.survival, decided.lengths)
        note_ranked(ranking, len(decided.slots))

    def _keep(self, decided: Decided) -> None:
        """Cut the ranked drafts to the budget."""
        report, ranking = decided.report, self._planner.ranking
        assert report is not None
        before = float(ranking.step["price"][0])
        keep_likeliest(ranking, report.survival, decided.lengths, decided.budget)
        if decided.was_cut:  # what did not fit was no choice
            ranking.step["price"] = before

    def learn(self, decided: Decided, verified: Verified) -> None:
        """Take in what became of a step's drafts."""
        report, planner = decided.report, self._planner
        assert report is not None
        rows, state, facts = len(decided.slots), planner.state, planner.rows
        planner.limits["rows"] = rows
        facts.slots[:rows] = decided.slots
        facts.prompt_tokens[:rows] = decided.prompt_tokens
        facts.position[:rows] = report.context - decided.prompt_tokens
        facts.holds_neural[:rows] = decided.holds_neural
        facts.length[:rows] = 0
        decided.expected = expected_tokens(report.survival, report.neural, verified.drafted)
        state.expected[:rows] = decided.expected
        state.record["factor"] = decided.factors
        known = verified.known
        shape = batch_shape(
            int(known.sum()),
            int(report.context[known].sum()),
            verified.drafted,
            decided.forwards,
            bool(decided.holds_neural.any()),
            decided.budget if self._pads else 0,
        )
        decided.step_s = float(step_s(planner.costs, shape))
        if known.any():
            stages.learn(
                self._policy.address,
                verified.emitted_tokens,
                verified.drafted,
                verified.neural_drafted,
                verified.accepted,
                decided.step_s,
            )


@compiled
def _settings(address: int, running: int, context: int) -> tuple[float, float, float, float]:
    """The running rate, and the factors of the n-gram, of the neural drafter and of splices."""
    planner = planner_at(address)
    state, costs = planner.state, planner.costs
    return (
        rate_of(state, costs, running, context),
        factor_of(state, NGRAM),
        factor_of(state, NEURAL),
        factor_of(state, SPLICE),
    )


def warm_up(policy: LearnedPolicy, setup: Setup) -> None:
    """Take every decision once, so that no request waits for a compiler."""
    host, one = Host(policy, setup), np.ones(1, np.int32)
    host.holds_drafter(1)
    decided = host.decide(np.zeros(1, np.int32), one, np.ones(1, np.bool_), 1)
    decided.budget = host.budget(1)
    layout = Layout(setup.cap, 0)
    decided.report = layout.unpacked(np.ones((1, layout.width(0)), np.float32), 0)
    host.note(decided, True)
    host.take_likeliest(decided, None, 0)
    known = np.ones(1, np.bool_)
    host.learn(decided, Verified(known, one, one, one, one))


@compiled
def expected_tokens(survival: Floats, neural: Ints, drafted: Ints) -> Floats:
    """(rows, 3) tokens expected to be accepted of so many verified ones, by source.

    Those of a splice are what is expected once all `neural` tokens before it are accepted.
    """
    expected = np.zeros((len(drafted), 3))
    for row in range(len(drafted)):
        by_head, copied = 0.0, 0.0
        for at in range(min(drafted[row], survival.shape[1])):
            if at < neural[row]:
                by_head += survival[row, at]
            else:
                copied += survival[row, at]
        if neural[row] == 0:
            expected[row, NGRAM] = copied
            continue
        last = survival[row, neural[row] - 1]
        expected[row, NEURAL] = by_head
        expected[row, SPLICE] = copied / last if last > 0 else 0.0
    return expected
