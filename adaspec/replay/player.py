"""Replays whatever can be named in an evaluation, each kind in the fastest way there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaspec.cost import ASYNC, SYNC
from adaspec.cost.model import CostModel
from adaspec.draft.matches import Ints
from adaspec.errors import EvaluationError
from adaspec.policy.protocol import LearnedPolicy
from adaspec.policy.static import Baseline, Budgeted, Needs, Online, StaticPolicy, StaticRule
from adaspec.replay.adaptive import run_adaptive
from adaspec.replay.learned import LearnedReplay
from adaspec.replay.loop import Result, result_of
from adaspec.replay.oracles import Oracle, run_oracle
from adaspec.replay.own import OwnPolicy, run_own
from adaspec.replay.recording import Recording
from adaspec.replay.rules import ByLoad, Drafted, RuleReplay
from adaspec.replay.suffix import SuffixDecoding, SuffixMemory, new_cache, run_suffix, why_not_here
from adaspec.trace.schema import Request

Doubles = NDArray[np.float64]
Compiled: TypeAlias = StaticPolicy | ByLoad | LearnedPolicy | Budgeted | Online | Oracle
"""What is replayed without calling Python at every step."""
Contender: TypeAlias = Compiled | SuffixDecoding | OwnPolicy


class Traffic(NamedTuple):
    """Who comes in a run: requests in this order, of which so many run at once."""

    order: Ints
    concurrency: int
    comes_s: Doubles | None = None
    """When each comes, in an open loop."""


class Player:
    """Replays contenders over one recording and cost model.

    It remembers the paths of rules and what policies predict.
    """

    def __init__(
        self,
        recording: Recording,
        cost: CostModel,
        cap: int,
        engine: str = SYNC,
        warm: Sequence[Request] = (),
        longest_s: float | None = None,
    ) -> None:
        """`warm` had been answered before the first request, as suffix decoding remembers.

        Learned policies plan no step that takes longer than `longest_s`.
        """
        self.recording, self.cap, self._longest_s = recording, cap, longest_s
        self.cost, self.engine, self._warm = cost, engine, warm
        self._rule_costs = cost.without_deciding().constants()
        self._rules = RuleReplay(recording, cap, engine == ASYNC, recording.members(None))
        self._drafted: dict[StaticRule, Drafted] = {}
        self._learned: dict[LearnedPolicy, LearnedReplay] = {}

    def check(self, contender: Contender) -> None:
        """Refuse what this trace cannot replay."""
        refusal = self.refusal(contender)
        if refusal is not None:
            raise EvaluationError(refusal)

    def refusal(self, contender: Contender) -> str | None:
        """Why this trace cannot replay the contender; None where it can."""
        known, why = self.recording.neural_cap, None
        needs = getattr(contender, "needs", Needs())  # one that says nothing needs nothing
        if needs.drafter and not known:
            why = "drafts with a neural drafter, but the trace recorded none"
        elif needs.neural_len > known:
            why = (
                f"drafts {needs.neural_len} neural tokens, but the trace's accepted counts end at "
                f"{known}: name a shorter draft"
            )
        elif isinstance(contender, SuffixDecoding):
            why = why_not_here()
        if why is None and self.engine == ASYNC and not isinstance(contender, Compiled):
            why = (
                "is asked step by step, with all outcomes known: no async engine runs it so; "
                "replay it with --engine sync"
            )
        return None if why is None else f"'{contender.name}' {why}"

    def play(
        self,
        contender: Contender,
        order: Ints,
        concurrency: int,
        comes_s: Doubles | None = None,
    ) -> Result:
        """One run of the loop: see `Traffic`."""
        if comes_s is None and len(order) < concurrency:
            raise EvaluationError(
                f"{len(order)} requests cannot fill a batch of {concurrency}: name more"
            )
        if isinstance(contender, StaticPolicy):
            contender = ByLoad(((1, contender),))
        if isinstance(contender, ByLoad):
            some = [self._drafted_by(policy.rule) for _, policy in contender.rules]
            asked = contender.numbers(concurrency), order, self._rule_costs, comes_s
            return result_of(self._rules.run(some, *asked))
        recording = self.recording
        run = order, concurrency, self.cost, self.cap
        if isinstance(contender, LearnedPolicy):
            if contender not in self._learned:
                self._learned[contender] = LearnedReplay(recording, contender)
            named = {"comes_s": comes_s, "longest_s": self._longest_s}
            return self._learned[contender].run(*run, self.engine, **named)
        if isinstance(contender, Budgeted | Online):
            loop = run_adaptive(recording, contender, *run, self.engine, comes_s)
        elif isinstance(contender, Oracle):
            loop = run_oracle(recording, contender, *run, comes_s)
        elif isinstance(contender, SuffixDecoding):
            memory = SuffixMemory(recording.requests, new_cache(), self._warm)
            loop = run_suffix(recording, contender, *run, memory, comes_s)
        else:
            loop = run_own(recording, contender, *run, comes_s)
        return result_of(loop)

    def _drafted_by(self, rule: StaticRule) -> Drafted:
        if rule not in self._drafted:
            self._drafted[rule] = self._rules.drafted(rule)
        return self._drafted[rule]

    def trials(self, runs: Sequence[Traffic]) -> Callable[[Baseline], list[Result]]:
        """What says of one setting after another what these runs come to; no rule is kept."""
        asked = np.unique(np.concatenate([run.order for run in runs]))
        rules = RuleReplay(self.recording, self.cap, self.engine == ASYNC, asked)

        def tried(policy: Baseline) -> list[Result]:
            if not isinstance(policy, StaticPolicy):
                return [self.play(policy, *run) for run in runs]
            some, results = [rules.drafted(policy.rule)], []
            for run in runs:
                always = np.zeros(run.concurrency + 1, np.int64)
                asked = always, run.order, self._rule_costs, run.comes_s
                results.append(result_of(rules.run(some, *asked)))
            return results

        return tried
