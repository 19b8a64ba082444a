"""The fastest way to replay whatever can be named in an evaluation.

A policy needs no entry here: the loop for any policy replays it, one step at a time. `_PLAYS` has
the kinds of policy that a faster loop gives the same results for, and what only replays know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.model import CostModel, Deciding
from adaspec.errors import EvaluationError
from adaspec.policy.adaptive import Adaptive
from adaspec.policy.base import Needs, needs_of
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Policy
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.replay.adaptive import run_adaptive
from adaspec.replay.closed_loop import result_of
from adaspec.replay.crossfit import CrossfitPolicy, CrossfitRule
from adaspec.replay.history import Answers
from adaspec.replay.learned import run_learned
from adaspec.replay.loop import run_policy
from adaspec.replay.oracles import LOOPS, Oracle, run_cheapest, run_oracle
from adaspec.replay.paths import Paths, run_paths, walk_rule
from adaspec.replay.recording import Recording
from adaspec.replay.remembered import RememberedRecordings
from adaspec.replay.result import Result
from adaspec.replay.suffix import Memory, SuffixDecoding, run_suffix, why_not_here

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class FreshRule:
    """Static rules decided as in a sync engine, whatever the engine: a yardstick, no rival.

    No async engine could run them so: it would have to know which rows copy before it has seen
    what the last step emitted.
    """

    rule: StaticPolicy | CrossfitRule

    @property
    def name(self) -> str:
        """The rule's."""
        return self.rule.name

    @property
    def needs(self) -> Needs:
        """The rule's."""
        return self.rule.needs


Contender: TypeAlias = Policy | Oracle | CrossfitPolicy | CrossfitRule | FreshRule | SuffixDecoding


class _Run(NamedTuple):
    """What is played."""

    recording: Recording
    order: Ints
    concurrency: int


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
        self.cost, self.engine, self.remembered = cost.under(engine), engine, remembered
        self._answers: Answers | None = None
        self._paths: dict[tuple[StaticRule, bool], Paths] = {}
        self._mixed: dict[tuple[CrossfitRule, bool], Paths] = {}

    @property
    def is_late(self) -> bool:
        """Whether forwards and budgets are decided before the last outcomes are known."""
        return self.engine == ASYNC

    def check(self, contender: Contender) -> None:
        """Refuse what this trace cannot replay."""
        refusal = self.refusal(contender)
        if refusal is not None:
            raise EvaluationError(refusal)

    def refusal(self, contender: Contender) -> str | None:
        """Why this trace cannot replay the contender; None where it can."""
        name, cap, needs = contender.name, self.recording.neural_cap, needs_of(contender)
        if needs.drafter and not cap:
            return f"'{name}' drafts with a neural drafter, but the trace recorded none"
        if needs.neural_len > cap:
            return (
                f"'{name}' drafts {needs.neural_len} neural tokens, but the trace's accepted "
                f"counts end at {cap}: name a shorter draft"
            )
        if needs.tokens and not self.recording.shows_tokens:
            return f"'{name}' compares drafted tokens, but the trace holds none"
        if needs.probabilities and not self.recording.shows_probabilities:
            return f"'{name}' reads the probabilities of drafted tokens, but the trace holds none"
        if needs.memory and self.remembered is None:
            return f"'{name}' copies from earlier answers, and none are replayed here"
        if isinstance(contender, SuffixDecoding):
            why = why_not_here()
            if why is None and self.is_late:
                why = "runs in sync engines only: replay it with --engine sync"
            return None if why is None else f"'{name}' {why}"
        if self.is_late and not is_compiled(contender):
            return (
                f"'{name}' is asked step by step, with all outcomes known: no async engine runs it "
                "so; replay it with --engine sync"
            )
        return None

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
        play: _Play = _play_of(contender) or Player._play_any
        seen = _Run(self.recording, order, concurrency)
        if needs_of(contender).memory:
            contender, seen = self._remembering(contender, seen, known)
        return play(self, contender, seen)

    def _remembering(
        self, contender: Contender, seen: _Run, known: Recording | None
    ) -> tuple[Contender, _Run]:
        """A contender and a run on the recording with the answers that are known.

        There an order's entries are requests of their own.
        """
        assert self.remembered is not None  # `refusal` says so
        if known is None:
            known = self.remembered.at(seen.order, seen.concurrency)
        if isinstance(contender, CrossfitPolicy):
            deciding = contender.policy_of_request[seen.order]
            contender = replace(contender, policy_of_request=deciding)
        elif isinstance(contender, CrossfitRule):
            contender = replace(contender, rule_of_request=contender.rule_of_request[seen.order])
        entries = np.arange(len(seen.order), dtype=np.int32)
        return contender, seen._replace(recording=known, order=entries)

    def _play_rules(self, rules: CrossfitRule, run: _Run) -> Result:
        return self._play_mixed(rules, self.is_late, run)

    def _play_fresh(self, fresh: FreshRule, run: _Run) -> Result:
        if isinstance(fresh.rule, CrossfitRule):
            return self._play_mixed(fresh.rule, False, run)
        return self._play_rule(fresh.rule.rule, False, run)

    def _play_mixed(self, rules: CrossfitRule, late: bool, run: _Run) -> Result:
        if (rules, late) not in self._mixed:
            walked = rules.paths(lambda rule: self._walked(rule, late, run.recording))
            if run.recording is not self.recording:
                return self._play_paths(walked, rules.holds, rules.deciding, run)
            self._mixed[rules, late] = walked
        return self._play_paths(self._mixed[rules, late], rules.holds, rules.deciding, run)

    def _play_compiled(self, policy: LearnedPolicy | CrossfitPolicy, run: _Run) -> Result:
        recording, order, concurrency = run
        cost, cap, engine = self.cost, self.cap, self.engine
        return run_learned(recording, policy, order, concurrency, cost, cap, engine=engine)

    def _play_adaptive(self, policy: Adaptive, run: _Run) -> Result:
        recording, order, concurrency = run
        return run_adaptive(recording, policy, order, concurrency, self.cost, self.cap)

    def _play_oracle(self, oracle: Oracle, run: _Run) -> Result:
        recording, order, concurrency = run
        if oracle.kind in LOOPS:
            return run_oracle(recording, oracle, order, concurrency, self.cost, self.cap)
        if concurrency > 1:
            raise EvaluationError(
                f"'{oracle.name}' is the cheapest path of one request: it has no meaning at "
                f"concurrency {concurrency}"
            )
        return run_cheapest(recording, oracle, order, self.cost, self.cap)

    def _play_suffix(self, suffix: SuffixDecoding, run: _Run) -> Result:
        recording, order, concurrency = run
        if self._answers is None:
            self._answers = Answers(recording.requests)
        before = () if self.remembered is None else self.remembered.before
        memory, cost, cap = Memory(self._answers, warm=before), self.cost, self.cap
        return run_suffix(recording, suffix, order, concurrency, cost, cap, memory)

    def _play_any(self, policy: Policy, run: _Run) -> Result:
        recording, order, concurrency = run
        return run_policy(recording, policy, order, concurrency, self.cost, self.cap)

    def _play_static(self, policy: StaticPolicy, run: _Run) -> Result:
        return self._play_rule(policy.rule, self.is_late, run)

    def _play_rule(self, rule: StaticRule, late: bool, run: _Run) -> Result:
        walked = self._walked(rule, late, run.recording)
        return self._play_paths(walked, rule.neural_len > 0, rule.deciding, run)

    def _walked(self, rule: StaticRule, late: bool, recording: Recording) -> Paths:
        """A rule's paths, kept where other orders have the same."""
        if recording is not self.recording:
            return walk_rule(recording, rule, self.cap, late)
        if (rule, late) not in self._paths:
            self._paths[rule, late] = walk_rule(recording, rule, self.cap, late)
        return self._paths[rule, late]

    def _play_paths(self, walked: Paths, holds: bool, deciding: Deciding, run: _Run) -> Result:
        recording, order, concurrency = run
        columns, costs = recording.columns, self.cost.charged_to(deciding).constants()
        return result_of(run_paths(columns, walked, order, concurrency, costs, holds))


_Play: TypeAlias = Callable[[Player, Any, _Run], Result]

_PLAYS: dict[type, _Play] = {
    StaticPolicy: Player._play_static,
    Adaptive: Player._play_adaptive,
    LearnedPolicy: Player._play_compiled,
    Oracle: Player._play_oracle,
    CrossfitRule: Player._play_rules,
    FreshRule: Player._play_fresh,
    CrossfitPolicy: Player._play_compiled,
    SuffixDecoding: Player._play_suffix,
}
"""How each kind of contender is replayed; what is not here is asked step by step."""


def _play_of(contender: object) -> _Play | None:
    return next((_PLAYS[kind] for kind in type(contender).__mro__ if kind in _PLAYS), None)


def is_compiled(contender: object) -> bool:
    """Whether a contender is replayed without calling Python at every step."""
    return not isinstance(contender, SuffixDecoding) and _play_of(contender) is not None
