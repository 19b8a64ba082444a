"""Replays whatever can be named in an evaluation, each kind in the fastest way there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.model import CostModel
from adaspec.errors import EvaluationError
from adaspec.policy.base import Needs, needs_of
from adaspec.policy.budgeted import Budgeted
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.spec import Baseline
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.replay.budgeted import run_budgeted
from adaspec.replay.closed_loop import Result, result_of
from adaspec.replay.history import GivenAnswers
from adaspec.replay.learned import run_learned
from adaspec.replay.oracles import Oracle, run_oracle
from adaspec.replay.own import OwnPolicy, run_own
from adaspec.replay.paths import Paths, run_paths, walk_rule
from adaspec.replay.recording import Recording, RememberedRecordings
from adaspec.replay.suffix import SuffixDecoding, SuffixMemory, new_cache, run_suffix, why_not_here

Ints = NDArray[np.int32]


Compiled: TypeAlias = StaticPolicy | LearnedPolicy | Budgeted | Oracle
Contender: TypeAlias = Compiled | SuffixDecoding | OwnPolicy


def is_compiled(contender: object) -> bool:
    """Whether a contender is replayed without calling Python at every step."""
    return isinstance(contender, Compiled)


def missing(recording: Recording, needs: Needs) -> str | None:
    """What is asked of a recording that it does not hold; None where nothing is missing."""
    if needs.drafter and not recording.neural_cap:
        return "drafts with a neural drafter, but the trace recorded none"
    if needs.neural_len > recording.neural_cap:
        return (
            f"drafts {needs.neural_len} neural tokens, but the trace's accepted counts end at "
            f"{recording.neural_cap}: name a shorter draft"
        )
    return None


class Player:
    """Replays contenders over one recording and cost model; remembers the paths of rules."""

    def __init__(
        self,
        recording: Recording,
        cost: CostModel,
        cap: int,
        engine: str = SYNC,
        remembered: RememberedRecordings | None = None,
    ) -> None:
        """`remembered` has the recording's requests with the earlier answers that they know."""
        self.recording, self.cap = recording, cap
        self.cost, self.engine, self.remembered = cost, engine, remembered
        self._answers: GivenAnswers | None = None
        self._paths: dict[StaticRule, Paths] = {}

    @property
    def is_async(self) -> bool:
        """Whether forwards and budgets are decided before the last outcomes are known."""
        return self.engine == ASYNC

    def check(self, contender: Contender) -> None:
        """Refuse what this trace cannot replay."""
        refusal = self.refusal(contender)
        if refusal is not None:
            raise EvaluationError(refusal)

    def refusal(self, contender: Contender) -> str | None:
        """Why this trace cannot replay the contender; None where it can."""
        needs = needs_of(contender)
        why = missing(self.recording, needs)
        if why is None and needs.memory and self.remembered is None:
            why = "copies from earlier answers, and none are replayed here"
        if why is None and isinstance(contender, SuffixDecoding):
            why = why_not_here()
        if why is None and self.is_async and not is_compiled(contender):
            why = (
                "is asked step by step, with all outcomes known: no async engine runs it so; "
                "replay it with --engine sync"
            )
        return None if why is None else f"'{contender.name}' {why}"

    def remember(self, order: Ints, concurrency: int) -> Recording | None:
        """The entries of an order with the answers that each knows; None where none are replayed.

        It takes a while, so whoever plays several contenders hands it to `play`.
        """
        return None if self.remembered is None else self.remembered.at(order, concurrency)

    def play(
        self,
        contender: Contender,
        order: Ints,
        concurrency: int,
        known: Recording | None = None,
    ) -> Result:
        """One run of the closed loop; `known` is what `remember` says of this order."""
        if len(order) < concurrency:
            raise EvaluationError(
                f"{len(order)} requests cannot fill a batch of {concurrency}: name more"
            )
        recording = self.recording
        if needs_of(contender).memory:
            assert self.remembered is not None  # `refusal` says so
            recording = self.remembered.at(order, concurrency) if known is None else known
            order = np.arange(len(order), dtype=np.int32)
        if isinstance(contender, StaticPolicy):
            return self._play_rule(contender, recording, order, concurrency)
        run = order, concurrency, self.cost, self.cap
        if isinstance(contender, LearnedPolicy):
            return run_learned(recording, contender, *run, engine=self.engine)
        if isinstance(contender, Budgeted):
            return run_budgeted(recording, contender, *run)
        if isinstance(contender, Oracle):
            return run_oracle(recording, contender, *run)
        if isinstance(contender, SuffixDecoding):
            return run_suffix(recording, contender, *run, self._new_memory())
        return run_own(recording, contender, *run)

    def _new_memory(self) -> SuffixMemory:
        """What suffix decoding remembers as a run begins."""
        if self._answers is None:
            self._answers = GivenAnswers(self.recording.requests)
        before = () if self.remembered is None else self.remembered.before
        return SuffixMemory(self._answers, new_cache(), before)

    def mean_speed(self, policy: Baseline, orders: Sequence[Ints], concurrency: int) -> float:
        """Tokens per second, as a mean over these orders; no path is kept of a rule."""
        if not isinstance(policy, StaticPolicy):
            runs = [self.play(policy, order, concurrency) for order in orders]
        else:
            asked = np.unique(np.concatenate(orders))
            paths = walk_rule(self.recording, policy.rule, self.cap, self.is_async, asked)
            runs = [
                self._run(policy, paths, self.recording, order, concurrency) for order in orders
            ]
        return float(np.mean([run.tokens_per_s for run in runs]))

    def _play_rule(
        self, policy: StaticPolicy, recording: Recording, order: Ints, concurrency: int
    ) -> Result:
        """One run, whose path is kept where other orders have the same."""
        if recording is self.recording and policy.rule in self._paths:
            paths = self._paths[policy.rule]
        else:
            paths = walk_rule(recording, policy.rule, self.cap, self.is_async)
            if recording is self.recording:
                self._paths[policy.rule] = paths
        return self._run(policy, paths, recording, order, concurrency)

    def _run(
        self,
        policy: StaticPolicy,
        paths: Paths,
        recording: Recording,
        order: Ints,
        concurrency: int,
    ) -> Result:
        costs = self.cost.without_deciding().constants()
        loop = run_paths(recording.columns, paths, order, concurrency, costs, policy.needs.drafter)
        return result_of(loop)
