"""Whatever can be named in an evaluation, and the fastest way to replay it.

A policy needs no entry here: the loop for any policy replays it, one step at a time. `_COMPILED`
has the kinds of policy that a faster loop gives the same results for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaspec.arguments import path_of
from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.model import CostModel
from adaspec.errors import EvaluationError, SpecError, nearest
from adaspec.policy.adaptive import BatchTable, Budget, Ema
from adaspec.policy.artifact import CHECKSUMS, NETWORKS
from adaspec.policy.base import BasePolicy, Needs, decides_late, needs_of
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.own import OwnPolicy, guarded, own_policy
from adaspec.policy.protocol import Policy
from adaspec.policy.shipped import shipped_policies
from adaspec.policy.spec import FIRST_WORDS, check_legible, parse_policy
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.replay.adaptive import run_adaptive
from adaspec.replay.closed_loop import TOTALS, result_from, result_of, seconds_per_token
from adaspec.replay.crossfit import CrossfitPolicy, CrossfitRule
from adaspec.replay.history import RememberedRecordings
from adaspec.replay.learned import run_learned
from adaspec.replay.loop import Observer, run_policy
from adaspec.replay.oracles import LOOPS, MEMORY, Oracle, run_cheapest, run_oracle
from adaspec.replay.paths import Paths, run_lockstep, run_paths, walk_rule
from adaspec.replay.recording import Recording
from adaspec.replay.result import Result
from adaspec.replay.suffix import (
    HEAD,
    Memory,
    SuffixDecoding,
    parse_suffix,
    run_suffix,
    why_not_here,
)


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

ORACLES = (*LOOPS, "dp", "dp-splice")


def parse_contender(text: str) -> Contender:
    """A spec, a trained policy's folder or shipped name, or what only replays know.

    That is `oracle:KIND`, `suffix:FACTOR:PROB`, and `python:MODULE:NAME` for a class of one's own.
    """
    check_legible(text)
    head = text.partition(":")[0]
    if head in _REPLAYED_ONLY:
        return _REPLAYED_ONLY[head](text)
    if head in FIRST_WORDS:
        return parse_policy(text)
    if _is_folder(text) or text in shipped_policies():
        policy = load_policy(text)
        _check_name(policy.name, text)
        return policy
    _refuse_path(text)
    return parse_policy(text)


def contender_of(given: object) -> Contender:
    """The contender that is given as a spec, a policy's folder, or an object that is a policy.

    An object of a class of one's own goes by its `name`, or else by its class's.
    """
    if isinstance(given, str):
        return parse_contender(given)
    if isinstance(given, os.PathLike):
        policy = load_policy(path_of(given, "a policy", SpecError))
        _check_name(policy.name, str(given))
        return policy
    if isinstance(given, OwnPolicy | SuffixDecoding) or is_compiled(given):
        return given  # type: ignore[return-value]
    if isinstance(given, type):
        raise SpecError(f"policy {given.__name__} is a class: give an object, {given.__name__}()")
    name = getattr(given, "name", None)
    if not isinstance(name, str) or name == BasePolicy.name:
        name = type(given).__name__
    check_legible(name)
    _check_name(name, f"{type(given).__name__} object")
    return guarded(name, given)


def _parse_oracle(text: str) -> Oracle:
    named = text.partition(":")[2]
    kind = named.removesuffix(MEMORY)
    if kind not in ORACLES:
        raise SpecError(
            f"unknown oracle '{text}'{nearest(kind, ORACLES) or '.'} "
            f"Known: {', '.join('oracle:' + kind for kind in ORACLES)}, each also with {MEMORY}"
        )
    return Oracle(kind, memory=named != kind)


_REPLAYED_ONLY: dict[str, Callable[[str], Contender]] = {
    "oracle": _parse_oracle,
    "python": own_policy,
    HEAD: parse_suffix,
}
"""How the specs are parsed that only replays know, by what they begin with."""
_RESERVED = FIRST_WORDS | set(_REPLAYED_ONLY) | {"static", "adaptive", "crossfit"}
"""What the rows of a report begin with that are no trained policy's."""


def _is_folder(text: str) -> bool:
    """Whether a trained policy lies there, sound or not; a trace has neither of these files."""
    try:
        return any((Path(text) / name).exists() for name in (CHECKSUMS, NETWORKS))
    except (OSError, ValueError):  # no name that a file could have
        return False


def _check_name(name: str, text: str) -> None:
    if name.partition(":")[0] in _RESERVED or not name:
        raise SpecError(
            f"'{text}': reports would call this policy '{name}', which means something else "
            "there: rename it"
        )


def _refuse_path(text: str) -> None:
    advice = "give a policy spec, or the folder of a trained policy"
    if not text.strip():
        raise SpecError(f"the policy spec is empty: {advice}")
    try:
        exists = Path(text).exists()
    except (OSError, ValueError):  # no name that a file could have
        exists = False
    if exists:
        raise SpecError(f"'{text}' is not the folder of a trained policy: {advice}")
    if "/" in text:
        raise SpecError(f"'{text}': there is no such folder: {advice}")
    close = nearest(text, shipped_policies())
    if close:
        raise SpecError(f"'{text}' is neither a policy spec nor a shipped policy{close}")


class Player:
    """Replays contenders over one recording and cost model; remembers the paths of rules."""

    def __init__(
        self,
        recording: Recording,
        cost: CostModel,
        cap: int,
        charged: Sequence[Contender] = (),
        engine: str = SYNC,
        remembered: RememberedRecordings | None = None,
    ) -> None:
        """`charged` are the very policies whose own decision time counts as time.

        A winner of the grids that goes by the same name is another object, and not charged.
        `remembered` has the recording's requests with the earlier answers that they know.
        """
        self.recording, self.cap, self.charged = recording, cap, charged
        self.cost, self.engine, self.remembered = cost.under(engine), engine, remembered
        self._paths: dict[tuple[StaticRule, bool, int], Paths] = {}
        self._mixed: dict[tuple[CrossfitRule, bool, int], Paths] = {}

    def seen_by(self, contender: Contender, concurrency: int) -> Recording:
        """The recording that a contender is replayed on where so many requests run."""
        if not needs_of(contender).memory:
            return self.recording
        assert self.remembered is not None  # `refusal` says so
        return self.remembered.at(concurrency)

    @property
    def is_late(self) -> bool:
        """Whether forwards and budgets are decided before the last outcomes are known."""
        return self.engine == ASYNC

    def charges(self, contender: Contender) -> bool:
        """Whether deciding counts as time."""
        return any(contender is each for each in self.charged)

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
        if needs.memory and self.remembered is None:
            return f"'{name}' copies from earlier answers, and none are replayed here"
        if needs.memory and (self.charges(contender) or self.recording.charges_longest_splices):
            return (
                f"'{name}' copies from earlier answers, which only compiled loops replay: leave "
                "--charge-decisions and --stress-splices out"
            )
        if isinstance(contender, SuffixDecoding):
            why = why_not_here()
            if why is None and self.is_late:
                why = "runs in sync engines only: replay it with --engine sync"
            return None if why is None else f"'{name}' {why}"
        if self.is_late and not self._has_order(contender):
            return (
                f"'{name}' does not say how many tokens a step may verify before the last outcome "
                "is known (it lacks the stage 'budget'): replay it with --engine sync"
            )
        return None

    def _has_order(self, contender: Contender) -> bool:
        """Whether there is an order of events for it in an async engine.

        Baselines that adapt and oracles keep their own.
        """
        kept = (*_NO_POLICIES, BatchTable, Budget, Ema)
        return isinstance(contender, kept) or decides_late(contender)

    def play_rounds(
        self, contender: Contender, orders: Sequence[NDArray[np.int32]], concurrency: int
    ) -> list[Result]:
        """One run per order, in turn: what is remembered of answers lasts from one to the next."""
        if not isinstance(contender, SuffixDecoding):
            return [self.play(contender, order, concurrency) for order in orders]
        memory = self._memory()
        return [self._play_suffix(contender, order, concurrency, True, memory) for order in orders]

    def play(
        self,
        contender: Contender,
        order: NDArray[np.int32],
        concurrency: int,
        refills: bool = True,
    ) -> Result:
        """One run of the closed loop; without refills, `concurrency` copies of order[0]."""
        if len(order) < concurrency:
            raise EvaluationError(
                f"{len(order)} requests cannot fill a batch of {concurrency}: name more"
            )
        # Only the loop for any policy clocks decisions.
        fast = None if self.charges(contender) else _entry(_COMPILED, contender)
        play: _Play = _entry(_NO_POLICIES, contender) or fast or Player._play_any
        return play(self, contender, order, concurrency, refills)

    def stepper(self, contender: Contender) -> Policy | None:
        """The contender as a policy that `watch` can replay; None if it is none."""
        kinds = (Oracle, CrossfitRule, FreshRule, CrossfitPolicy, SuffixDecoding)
        if isinstance(contender, kinds) or (self.is_late and not decides_late(contender)):
            return None
        if needs_of(contender).memory:  # one live index cannot know less for earlier requests
            return None
        return contender

    def watch(
        self,
        policy: Policy,
        order: NDArray[np.int32],
        concurrency: int,
        observer: Observer,
    ) -> Result:
        """The same run as that of `play`, by the loop for any policy, with an observer in it."""
        return self._play_any(policy, order, concurrency, True, observer)

    def _play_rules(
        self, rules: CrossfitRule, order: NDArray[np.int32], concurrency: int, refills: bool
    ) -> Result:
        return self._play_mixed(rules, self.is_late, order, concurrency, refills)

    def _play_fresh(
        self, fresh: FreshRule, order: NDArray[np.int32], concurrency: int, refills: bool
    ) -> Result:
        if isinstance(fresh.rule, CrossfitRule):
            return self._play_mixed(fresh.rule, False, order, concurrency, refills)
        return self._play_rule(fresh.rule.rule, False, order, concurrency, refills)

    def _play_mixed(
        self,
        rules: CrossfitRule,
        late: bool,
        order: NDArray[np.int32],
        concurrency: int,
        refills: bool,
    ) -> Result:
        key = (rules, late, concurrency if rules.needs.memory else 0)
        if key not in self._mixed:
            self._mixed[key] = rules.paths(lambda rule: self._walked(rule, late, concurrency))
        walked = self._mixed[key]
        return self._play_paths(walked, rules.holds, order, concurrency, refills)

    def _play_crossfit(
        self, policy: CrossfitPolicy, order: NDArray[np.int32], concurrency: int, refills: bool
    ) -> Result:
        if self.charges(policy) or self.recording.charges_longest_splices:
            raise EvaluationError(
                f"'{policy.name}' is several policies, which only the plain closed loop "
                "plays: leave --charge-decisions and --stress-splices out"
            )
        return run_learned(
            self.seen_by(policy, concurrency),
            policy,
            order,
            concurrency,
            self.cost,
            self.cap,
            refills,
            engine=self.engine,
        )

    def _play_learned(
        self, policy: LearnedPolicy, order: NDArray[np.int32], concurrency: int, refills: bool
    ) -> Result:
        if (
            self.recording.charges_longest_splices
        ):  # Only the loop for any policy knows what the longest splices cost.
            return self._play_any(policy, order, concurrency, refills)
        return run_learned(
            self.seen_by(policy, concurrency),
            policy,
            order,
            concurrency,
            self.cost,
            self.cap,
            refills,
            engine=self.engine,
        )

    def _play_adaptive(
        self, policy: Budget | Ema, order: NDArray[np.int32], concurrency: int, refills: bool
    ) -> Result:
        return run_adaptive(
            self.recording, policy, order, concurrency, self.cost, self.cap, refills
        )

    def _play_oracle(
        self, oracle: Oracle, order: NDArray[np.int32], concurrency: int, refills: bool
    ) -> Result:
        recording = self.seen_by(oracle, concurrency)
        if oracle.kind in LOOPS:
            return run_oracle(recording, oracle, order, concurrency, self.cost, self.cap, refills)
        if refills and concurrency > 1:
            raise EvaluationError(
                f"'{oracle.name}' is the cheapest path of one request: it has no meaning in a "
                f"closed loop at concurrency {concurrency}; see --batching lockstep"
            )
        one = order if refills else order[:1]
        return run_cheapest(recording, oracle, one, concurrency, self.cost, self.cap)

    def _memory(self) -> Memory:
        """The memory of suffix decoding as a run begins."""
        return Memory(warm=() if self.remembered is None else self.remembered.before)

    def _play_suffix(
        self,
        suffix: SuffixDecoding,
        order: NDArray[np.int32],
        concurrency: int,
        refills: bool,
        memory: Memory | None = None,
    ) -> Result:
        charged = self.charges(suffix)
        return run_suffix(
            self.recording,
            suffix,
            order,
            concurrency,
            self.cost,
            self.cap,
            refills,
            charged,
            self._memory() if memory is None else memory,
        )

    def _play_any(
        self,
        policy: Policy,
        order: NDArray[np.int32],
        concurrency: int,
        refills: bool,
        observer: Observer | None = None,
    ) -> Result:
        charged = self.charges(policy)
        return run_policy(
            self.recording,
            policy,
            order,
            concurrency,
            self.cost,
            self.cap,
            refills,
            charged,
            self.engine,
            observer,
        )

    def _play_static(
        self, policy: StaticPolicy, order: NDArray[np.int32], concurrency: int, refills: bool
    ) -> Result:
        return self._play_rule(policy.rule, self.is_late, order, concurrency, refills)

    def _play_table(
        self, table: BatchTable, order: NDArray[np.int32], concurrency: int, refills: bool
    ) -> Result:
        """As the static rule that the table amounts to while the batch has this very size."""
        rule = StaticRule(neural_len=table.length(concurrency))
        return self._play_rule(rule, False, order, concurrency, refills)

    def _play_rule(
        self,
        rule: StaticRule,
        late: bool,
        order: NDArray[np.int32],
        concurrency: int,
        refills: bool,
    ) -> Result:
        holds = rule.neural_len > 0
        walked = self._walked(rule, late, concurrency)
        return self._play_paths(walked, holds, order, concurrency, refills)

    def _walked(self, rule: StaticRule, late: bool, concurrency: int) -> Paths:
        key = (rule, late, concurrency if rule.memory else 0)
        if key not in self._paths:
            recording = self.seen_by(StaticPolicy("", rule), concurrency)
            self._paths[key] = walk_rule(recording, rule, self.cap, late)
        return self._paths[key]

    def _play_paths(
        self,
        walked: Paths,
        holds: bool,
        order: NDArray[np.int32],
        concurrency: int,
        refills: bool,
    ) -> Result:
        columns, costs = self.recording.columns, self.cost.constants()
        if refills:
            return result_of(run_paths(columns, walked, order, concurrency, costs, holds))
        totals = np.zeros(1, TOTALS)
        run_lockstep(columns, walked, order[0], concurrency, costs, holds, totals)
        token_s = seconds_per_token(columns, order[:1], totals["time_s"])
        return result_from(totals, token_s)


_Play: TypeAlias = Callable[[Player, Any, NDArray[np.int32], int, bool], Result]

_NO_POLICIES: dict[type, _Play] = {
    Oracle: Player._play_oracle,
    CrossfitRule: Player._play_rules,
    FreshRule: Player._play_fresh,
    CrossfitPolicy: Player._play_crossfit,
    SuffixDecoding: Player._play_suffix,
}
"""How each contender is replayed that no engine could be given as it is."""
_COMPILED: dict[type, _Play] = {
    StaticPolicy: Player._play_static,
    BatchTable: Player._play_table,
    Budget: Player._play_adaptive,
    Ema: Player._play_adaptive,
    LearnedPolicy: Player._play_learned,
}
"""How each kind of policy is replayed faster than by the loop for any policy."""


def _entry(table: Mapping[type, _Play], contender: object) -> _Play | None:
    return next((table[kind] for kind in type(contender).__mro__ if kind in table), None)


def is_compiled(contender: object) -> bool:
    """Whether a contender is replayed without calling Python at every step."""
    if isinstance(contender, SuffixDecoding):
        return False
    return _entry({**_NO_POLICIES, **_COMPILED}, contender) is not None
