"""Serves by the arm that delivers most, as a switchback tells: blocks of steps beside one another.

Arms are none, the policy, and the operator's baseline where there is one. Whoever runs an engine's
steps asks and tells one guard, and its decision holds for all ranks:

    decide(rows, context_tokens, prompt_tokens)   before a step: a `GuardDecision`
    note(decision, seconds, tokens, emitting)     after it: what it took and emitted

Each octave of load has its own record. One arm is the *incumbent* there and serves. The others
challenge it in turn, each in a *probe* of a few steps. A probe and the incumbent's steps before it
are a pair, and the challenger's lead in it is the logarithm of what it delivered per second over
what the incumbent did. Over six pairs or more, weighted by their variance, the incumbent loses its
place where

    mean lead - 2.75 standard errors > 0.

Where that makes none the incumbent, speculation is *held off* for some steps. Then another arm is
on *trial*: until it has lost its credit, and is held off again, or for 256 steps, which make it the
incumbent if it leads.

What a step delivers is counted in seconds: those in which the cost model's steps without drafts
deliver as much. So rows, contexts and prompts may differ, and a model that is wrong is wrong about
all arms. A guard reads no clock and draws no random numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

NONE, POLICY, BASELINE = ARMS = ("none", "policy", "baseline")
PLAN, BASE, PROBE, KEEP, HOLD = STATES = ("plan", "baseline", "probe", "keep", "hold")
"""What a step does: it drafts as the policy plans, or as the baseline does; or nothing is drafted,
in a probe; in the first two holds, in which the drafter reads on; or in a longer hold, which takes
the drafter from all requests that run."""
SPECULATING = (PLAN, BASE)

PlainSeconds = Callable[[int, int, int], float]
"""What the cost model says of a step of so many rows, context tokens and prompt tokens, without
drafts."""

_PAIRS, _REMEMBERED, _ERRORS = 6, 24, 2.75
_BLOCK, _VARIANCE = 512, 0.05
"""The steps that a block has at most, and the variance of its rate that lets a probe begin."""
_SPREAD_PER_ROW, _UNSEEN_PER_ROW, _UNSEEN = 1.0, 2.0, 0.02
"""What a row's tokens vary by in a step before any are seen, and what else few steps may hide."""
_FIRST_SPREAD, _SPREAD = 128, 256
"""Steps that the first spread counts for, and that what was seen of it counts for at most."""
_MEDIANS, _RECENT = 3.0, 15
"""A step takes at most so many medians of its arm's last steps."""
_PROBE, _SHARE = 2, 1 / 128
"""The steps of a probe that are timed, and the share of steps that probes and trials cost."""
_LOST, _SLACK = 8.0, 0.05
"""An incumbent that lost so many steps of late (five times as many where one row is its own),
beside a share that pairs tell of, has changed."""
_TRIAL, _CREDIT = 256, 2.0
"""The steps of a trial, and those it may lose (three times as many where one row is its own)."""
_FIRST_HOLD, _SHORT_HOLDS, _USUAL_HOLD = 32, 2, 512
"""Steps of the first hold, how many holds are short, and steps of a hold at most, unless the trial
before it lost more than `_SHARE` of them."""


class GuardDecision(NamedTuple):
    """What one step is to do, and what has to be known of it when it is noted."""

    arm: str
    state: str
    is_timed: bool
    """Whether its time says anything: not behind a change-over."""
    load: int
    rows: int
    plain_s: float
    """What the cost model says of it without drafts and prompts."""
    whole_s: float
    """What the cost model says of it without drafts."""


@dataclass(slots=True)
class _Arm:
    """What is known of an arm at an octave of load."""

    spread: float
    """The variance of what one step delivers per second, as a share of the mean's square."""
    unseen: float
    seen: int = _FIRST_SPREAD
    rate: float = math.nan
    """The logarithm of what it delivers per second, on average over its last blocks."""
    blocks: int = 0
    pairs: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """Its leads over the incumbent, and the variance of each."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """What its last steps took, in those of the cost model."""

    def winsorised(self, seconds: float, whole_s: float) -> float:
        """What a step took, at most three times the usual."""
        self.recent.append(seconds / whole_s)
        usual = sorted(self.recent)[(len(self.recent) - 1) // 2]
        return min(seconds, _MEDIANS * usual * whole_s)

    def variance(self, steps: int) -> float:
        """Of the rate of so many steps; their own would favour those that met no burst."""
        return (self.spread + self.unseen / steps) / steps

    def take(self, block: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Learn from a block; its rate, without the logarithm's bias, and the variance of that."""
        work, seconds = np.array(block).T
        count, rate = len(block), math.log(work.mean() / seconds.mean())
        work, seconds = work / work.mean(), seconds / seconds.mean()
        rate += (work.var() - seconds.var()) / (2 * count)
        before = self.rate if self.blocks else rate
        self.blocks = min(self.blocks + 1, _REMEMBERED)
        self.rate = before + (rate - before) / self.blocks
        seen = min(count, _FIRST_SPREAD)
        self.spread += ((work - seconds).var() - self.spread) * seen / (self.seen + seen)
        self.seen = min(self.seen + seen, _SPREAD)
        return rate, self.variance(count)

    def lead(self, errors: float) -> float:
        """The mean lead plus so many standard errors: by variances, or by scatter if more."""
        if not self.pairs:
            return -math.inf
        leads, variances = np.array(self.pairs).T
        weights = 1 / variances / (1 / variances).sum()
        mean, square = weights @ leads, weights @ weights
        scatter = weights @ (leads - mean) ** 2 * square / max(1 - square, 1e-9)
        return float(mean + errors * math.sqrt(max(1 / (1 / variances).sum(), scatter)))


@dataclass(slots=True)
class _Record:
    """What is known at an octave of load."""

    arms: dict[str, _Arm]
    incumbent: str = POLICY
    serving: str = POLICY
    """The incumbent, or its challenger."""
    steps: int = 0
    """Steps since it began to serve."""
    block: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_BLOCK))
    """Its timed steps: what they delivered, and took."""
    bar: tuple[float, float] = (math.nan, 0.0)
    """The rate that it has to beat, and the variance of that."""
    lost: float = 0.0
    """Steps that it has lost to that rate: an incumbent of late, a challenger in all."""
    wait: int = 1
    """Steps until the next probe, or the steps of a hold."""
    probes: int = 0
    holds: int = 0
    """Holds since speculation last led."""

    @property
    def others(self) -> list[str]:
        """The arms that challenge the incumbent."""
        return [name for name in self.arms if name != self.incumbent]

    @property
    def is_on_trial(self) -> bool:
        """Whether an arm is tried behind a hold."""
        return self.incumbent == NONE and self.serving != NONE

    def serve(self, name: str, bar: tuple[float, float]) -> None:
        """Begin a block of an arm."""
        self.serving, self.bar, self.steps, self.lost = name, bar, 0, 0.0
        self.block.clear()

    def go_back(self) -> None:
        """Begin a block of the incumbent."""
        best = np.fmax.reduce([self.arms[name].rate for name in self.others])
        self.serve(self.incumbent, (float(best), 0.0))

    def begin_anew(self, incumbent: str) -> None:
        """Forget all pairs; an arm becomes the incumbent."""
        for arm in self.arms.values():
            arm.pairs.clear()
            arm.blocks = 0
        self.incumbent, self.wait = incumbent, 1
        self.go_back()

    def hold(self, lost: float) -> None:
        """Hold speculation off: twice as long each time, and as long as the trial before costs."""
        self.begin_anew(NONE)
        self.holds += 1
        worth = int(lost / _SHARE)
        least = worth // 2 if self.holds > _SHORT_HOLDS else 0
        self.wait = max(min(_FIRST_HOLD << self.holds - 1, max(_USUAL_HOLD, worth)), least)


class Guard:
    """Says of each step of one engine which arm serves it."""

    def __init__(
        self, plain_s: PlainSeconds, lag: int = 1, arms: Sequence[str] = (NONE, POLICY)
    ) -> None:
        """`lag`: so many steps after a change-over, a step still bears marks of what was before."""
        self._plain_s, self._lag, self._names = plain_s, lag, arms
        self._records: dict[int, _Record] = {}
        self._load = -1
        self._arm, self._alike = POLICY, 0
        """The arm of the last step, and how many steps before had the same."""
        self.switches = 0
        """How often another arm became the incumbent, or speculation was held off again."""

    def decide(self, rows: int, context_tokens: int, prompt_tokens: int = 0) -> GuardDecision:
        """What the next step does: of so many rows, with so many known tokens in all, and reading
        so many prompt tokens besides."""
        octave = math.log2(max(rows, 1))
        if abs(octave - self._load) > 0.75:  # an edge is no place to swing
            self.interrupt()
            self._load = round(octave)
        record = self._records.get(self._load) or self._new_record()
        self._alike = self._alike + 1 if record.serving == self._arm else 0
        self._arm = record.serving
        state = PLAN if self._arm == POLICY else BASE
        if self._arm == NONE:
            held = KEEP if record.holds <= _SHORT_HOLDS else HOLD
            state = held if record.incumbent == NONE else PROBE
        is_timed = self._alike >= self._lag and state != KEEP  # it takes what reading takes, too
        plain_s = self._plain_s(rows, context_tokens, 0)
        whole_s = self._plain_s(rows, context_tokens, prompt_tokens) if prompt_tokens else plain_s
        return GuardDecision(self._arm, state, is_timed, self._load, rows, plain_s, whole_s)

    def _new_record(self) -> _Record:
        """A record of the present load, which begins as its nearest neighbour is."""
        rows = 2**self._load
        arms = {name: _Arm(_SPREAD_PER_ROW / rows, _UNSEEN_PER_ROW / rows) for name in self._names}
        arms[NONE] = _Arm(0.0, 0.0)
        for arm in arms.values():
            arm.unseen += _UNSEEN
        record = _Record(arms)
        if self._records:
            near = self._records[min(self._records, key=lambda load: abs(load - self._load))]
            for name, arm in arms.items():
                arm.rate = near.arms[name].rate
            record.begin_anew(near.incumbent)
            record.holds, record.wait = near.holds, _FIRST_HOLD if near.incumbent == NONE else 1
        self._records[self._load] = record
        return record

    def interrupt(self) -> None:
        """Something else was served: what comes next is blurred by it."""
        self._alike = -1
        record = self._records.get(self._load)
        # A trial goes on where it was: begun anew, none would end where loads swing.
        if record is not None and not record.is_on_trial:
            record.block.clear()
            if record.serving != record.incumbent:
                record.go_back()

    def note(self, decision: GuardDecision, seconds: float, tokens: int, emitting: int) -> None:
        """Take in what a step took, and how many tokens it emitted, of how many of its rows."""
        record, whole_s = self._records.get(decision.load), decision.whole_s
        if record is None or not 0 < seconds < math.inf or decision.rows <= 0:
            return
        if decision.arm != record.serving:  # it was in flight as another arm began
            return
        seconds = record.arms[decision.arm].winsorised(seconds, whole_s)
        work = whole_s + decision.plain_s * (tokens - emitting) / decision.rows
        record.steps += 1
        record.lost += (seconds * math.exp(record.bar[0]) - work) / whole_s
        if decision.is_timed:
            record.block.append((work, seconds))
        before, holds = record.incumbent, record.holds
        if record.serving == before:
            self._watch(record, decision.rows)
        elif record.block and record.is_on_trial:
            self._try(record, decision.rows)
        elif len(record.block) >= max(_PROBE, int(record.wait * _SHARE) - self._lag):
            self._judge(record)
        self.switches += record.incumbent != before or record.holds > holds

    def _watch(self, record: _Record, rows: int) -> None:
        """Follow the incumbent until it is to be challenged."""
        arm, is_held = record.arms[record.incumbent], record.incumbent == NONE
        record.lost = max(record.lost - _SLACK, 0.0)
        if record.lost > _LOST * (1 + 4 / rows) and not is_held:
            if all(record.arms[name].lead(0) < 0 for name in record.others):
                record.begin_anew(record.incumbent)
            record.lost, record.wait = 0.0, 1
        if record.steps < record.wait or not (record.block or is_held):
            return
        beside = arm.rate, 0.0
        if record.block:
            if not is_held:
                work, seconds = map(sum, zip(*record.block, strict=True))
                apart = max(record.bar[0] - math.log(work / seconds), 0.0)
                if arm.variance(len(record.block)) > max((apart / 2) ** 2, _VARIANCE):
                    return
            beside = arm.take(record.block)
        record.probes += 1
        record.serve(record.others[record.probes % len(record.others)], beside)

    def _try(self, record: _Record, rows: int) -> None:
        """End a trial that has lost its credit, or is long enough."""
        is_lost = record.lost > _CREDIT * (1 + 2 / rows)
        if is_lost or len(record.block) >= _TRIAL:
            arm = record.arms[record.serving]
            if is_lost or arm.take(record.block)[0] < record.bar[0]:
                record.hold(record.lost)
            else:
                record.begin_anew(record.serving)

    def _judge(self, record: _Record) -> None:
        """End a probe: pair it with the incumbent's block."""
        arm, (rate, variance) = record.arms[record.serving], record.bar
        own_rate, own_variance = arm.take(record.block)
        arm.pairs.append((own_rate - rate, own_variance + variance))
        if len(arm.pairs) >= _PAIRS:
            if arm.lead(-_ERRORS) > 0:
                if record.serving == NONE:
                    record.hold(0.0)
                else:
                    record.begin_anew(record.serving)
                return
            if arm.lead(_ERRORS) < 0:
                record.holds = 0
        longest = int((self._lag + _PROBE) / _SHARE)
        if arm.lead(0) < 0:  # nothing changes
            times = 16 if arm.lead(6) < 0 else 4 if arm.lead(3) < 0 else 2
            record.wait = min(record.wait * times, longest)
        elif arm.lead(-1) > 0:
            record.wait = max(record.wait // 4, len(arm.pairs))  # a close race takes longer blocks
        record.go_back()

    def rates(self, decision: GuardDecision) -> dict[str, float]:
        """By arm, tokens per second at a step's load, as far as they are known."""
        arms, per_s = self._records[decision.load].arms, decision.rows / decision.plain_s
        known = {name: arm.rate for name, arm in arms.items() if not math.isnan(arm.rate)}
        return {name: per_s * math.exp(rate) for name, rate in known.items()}

    def slowness(self, decision: GuardDecision) -> float:
        """How many times as long as the cost model says plain steps take at a step's load."""
        rate = self._records[decision.load].arms[NONE].rate
        return 1.0 if math.isnan(rate) else math.exp(-rate)

    def incumbent(self, decision: GuardDecision) -> str:
        """The arm that serves at a step's load, but for probes and trials."""
        return self._records[decision.load].incumbent
