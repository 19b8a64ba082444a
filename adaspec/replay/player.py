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
from adaspec.replay.learned import run_learned
from adaspec.replay.oracles import Oracle, run_oracle
from adaspec.replay.own import OwnPolicy, run_own
from adaspec.replay.paths import Paths, run_paths, walk_rule
from adaspec.replay.recording import Recording
from adaspec.replay.suffix import SuffixDecoding, SuffixMemory, new_cache, run_suffix, why_not_here
from adaspec.trace.schema import Request

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
        warm: Sequence[Request] = (),
    ) -> None:
        """`warm` had been answered before the first request, as suffix decoding remembers."""
        self.recording, self.cap = recording, cap
        self.cost, self.engine, self._warm = cost, engine, warm
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
        why = missing(self.recording, needs_of(contender))
        if why is None and isinstance(contender, SuffixDecoding):
            why = why_not_here()
        if why is None and self.is_async and not is_compiled(contender):
            why = (
                "is asked step by step, with all outcomes known: no async engine runs it so; "
                "replay it with --engine sync"
            )
        return None if why is None else f"'{contender.name}' {why}"

    def play(self, contender: Contender, order: Ints, concurrency: int) -> Result:
        """One run of the closed loop."""
        if len(order) < concurrency:
            raise EvaluationError(
                f"{len(order)} requests cannot fill a batch of {concurrency}: name more"
            )
        if isinstance(contender, StaticPolicy):
            return self._play_rule(contender, order, concurrency)
        recording = self.recording
        run = order, concurrency, self.cost, self.cap
        if isinstance(contender, LearnedPolicy):
            return run_learned(recording, contender, *run, engine=self.engine)
        if isinstance(contender, Budgeted):
            return run_budgeted(recording, contender, *run)
        if isinstance(contender, Oracle):
            return run_oracle(recording, contender, *run)
        if isinstance(contender, SuffixDecoding):
            memory = SuffixMemory(recording.requests, new_cache(), self._warm)
            return run_suffix(recording, contender, *run, memory)
        return run_own(recording, contender, *run)

    def mean_speed(self, policy: Baseline, orders: Sequence[Ints], concurrency: int) -> float:
        """Tokens per second, as a mean over these orders; no path is kept of a rule."""
        if not isinstance(policy, StaticPolicy):
            runs = [self.play(policy, order, concurrency) for order in orders]
        else:
            asked = np.unique(np.concatenate(orders))
            paths = walk_rule(self.recording, policy.rule, self.cap, self.is_async, asked)
            runs = [self._run(policy, paths, order, concurrency) for order in orders]
        return float(np.mean([run.tokens_per_s for run in runs]))

    def _play_rule(self, policy: StaticPolicy, order: Ints, concurrency: int) -> Result:
        """One run, whose path is kept, as other orders have the same."""
        if policy.rule not in self._paths:
            paths = walk_rule(self.recording, policy.rule, self.cap, self.is_async)
            self._paths[policy.rule] = paths
        return self._run(policy, self._paths[policy.rule], order, concurrency)

    def _run(self, policy: StaticPolicy, paths: Paths, order: Ints, concurrency: int) -> Result:
        costs, columns = self.cost.without_deciding().constants(), self.recording.columns
        loop = run_paths(columns, paths, order, concurrency, costs, policy.needs.drafter)
        return result_of(loop)
