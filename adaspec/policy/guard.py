"""A switchback between arms: whichever delivers most tokens per second at a load serves there.

An *arm* is what a step does: nothing beyond the target (none), what the policy plans, or what the
operator ran before (the baseline). Whoever runs an engine's steps asks and tells one guard, and
its decision holds for all ranks:

    decide(rows, context_tokens, prompt_tokens)   before a step: a `GuardDecision`
    note(decision, seconds, tokens, emitting)     after it: what it took and emitted

One arm serves, and *probes*, blocks of steps of another arm, interrupt it. A block delivers

    pace = log(work / seconds), work: what the cost model says of its tokens and prompts undrafted,

so that rows, contexts and prompts may differ, and however wrong the model is, it is wrong about
both arms. Each octave of load has a record, in which *pairs* of a probe and the block before it
are compared. Where an arm leads by two standard errors, it serves from then on. Probes get rarer
while nothing changes, and come at once where the arm that serves falls behind. While none serves,
speculation is *held off*.

A guard reads no clock and draws no random numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NONE, POLICY, BASELINE = ARMS = "none", "policy", "baseline"
PLAN, BASE, PROBE, KEEP, HOLD = STATES = ("plan", "baseline", "probe", "keep", "hold")
"""What a step does: what the policy plans; what the baseline does; or nothing. In a probe, which is
short, the neural drafter misses what is said; in a short hold the drafter reads on; in a longer
one, requests that run are without the drafter from then on."""
SPECULATING = (PLAN, BASE)

PlainSeconds = Callable[[int, int, int], float]
"""What the cost model says of a step of so many rows, context tokens and prompt tokens, without
drafts."""

_PRECISION, _LONGEST_BLOCK, _LONGEST_PROBE = 0.1, 64, 16
"""A block is so long that its pace is known to a tenth, but no longer than so many steps; than so
many where the neural drafter may miss them."""
_PAIRS, _ERRORS, _MEMORY = 6, 2.0, 32
"""Pairs that a judgement takes, standard errors by which an arm has to lead, and about how many
pairs are remembered."""
_UNKNOWN = 0.03
"""By so much blocks differ for reasons that their steps do not tell."""
_SUSPICION = 2.5
"""An arm is suspected to have fallen behind by so many standard deviations of one block."""
_PROBE_SHARE, _TRIAL_SHARE = 1 / 128, 1 / 100
"""The share of the steps that are probes while an arm speculates and nothing changes, and of the
time that probes lose while none serves."""
_DOUBT = 1.25
"""The wait for the next probe is twice the last one, or so many times where it is not clear which
arm leads."""
_LONGEST_WAIT, _FIRST_HOLD, _KEPT_HOLDS, _LONGEST_HOLD = 1024, 32, 2, 12_800
"""Steps between probes at most, if these are short; steps held off at first, twice as many next;
in so many holds the neural drafter reads on; and the steps of the longest."""
_FADE = 1 - 1 / 64
"""What is kept of an arm's rate with each step."""
_MEDIANS, _RECENT = 3.0, 15
"""A step counts as at most so many medians of the last ones of its arm and kind."""


class GuardDecision(NamedTuple):
    """What one step is to do, and what has to be known of it when it is noted."""

    state: str
    is_timed: bool
    """Whether its time says anything: not behind a change-over."""
    record: _Record
    block: _Block
    rows: int
    reads_prompts: bool
    plain_s: float
    """What the cost model says of it without drafts and prompts."""
    whole_s: float
    """The same with its prompts."""


@dataclass(slots=True, eq=False)
class _Block:
    """Steps of one arm, one behind another."""

    arm: str
    decided: int = 0
    steps: int = 0
    """Those that were timed, as were work and seconds."""
    work_s: float = 0.0
    took_s: float = 0.0


@dataclass(slots=True)
class _Arm:
    """What one arm delivers at one load."""

    variance: float
    """Of what a step delivers beyond what it takes, as a share of that, squared."""
    longest: int
    """Steps of its longest blocks."""
    seen: int = 0
    steps: float = 0.0
    """Its steps of late, their work and what they took."""
    work_s: float = 0.0
    took_s: float = 0.0
    recent: tuple[deque[float], ...] = field(
        default_factory=lambda: (deque(maxlen=_RECENT), deque(maxlen=_RECENT))
    )
    """What the last steps took, in those of the cost model: without prompts, and with."""

    def length(self, precision: float = _PRECISION) -> int:
        """How many steps make a block."""
        return min(max(math.ceil(self.variance / precision**2), 1), self.longest)

    def note(self, block: _Block, step: GuardDecision, work_s: float, took_s: float) -> None:
        """Take in a step of a block."""
        recent = self.recent[step.reads_prompts]
        recent.append(took_s / step.whole_s)
        if len(recent) == 1:  # the first may compile something
            return
        usual_s = step.whole_s * sorted(recent)[(len(recent) - 1) // 2]
        took_s = min(took_s, _MEDIANS * usual_s)
        block.steps += 1
        block.work_s += work_s
        block.took_s += took_s
        if self.seen:
            off = (work_s / self.rate - took_s) / (self.took_s / self.steps)
            self.variance += (min(off * off, 9.0) - self.variance) / min(self.seen + 4, 256)
        self.seen += 1
        self.steps = self.steps * _FADE + 1
        self.work_s = self.work_s * _FADE + work_s
        self.took_s = self.took_s * _FADE + took_s

    @property
    def rate(self) -> float:
        """Work per second, of late."""
        return self.work_s / self.took_s

    def pace(self, block: _Block) -> tuple[float, float]:
        """A block's pace, and the variance of that, by which the mean of a logarithm is too low."""
        variance = self.variance / block.steps
        return math.log(block.work_s / block.took_s) + variance / 2, variance


@dataclass(slots=True)
class _Lead:
    """By how much an arm leads the one that serves, and when it is tried again."""

    pairs: float = 0.0
    weight: float = 0.0
    mean: float = 0.0
    """Of pairs, weighted by their variances."""
    spread: float = 0.0
    """The weighted squares of their distances to the mean."""
    wait: int = 0
    """Steps between two probes."""
    waited: int = 0
    holds: int = 0
    """How often it was held off in a row."""

    @property
    def error(self) -> float:
        """The standard error of the mean; of few pairs, the spread itself is hardly known."""
        between = self.spread / max(self.pairs - 1, 1)
        return math.sqrt(max(between, 1.0) / self.weight) * (1 + 1.5 / self.pairs)

    def take(self, lead: float, variance: float) -> None:
        """Take in a pair; one that says the contrary of all before for certain replaces them."""
        sure = max(math.sqrt(variance), self.error if self.pairs else 0.0)
        if lead * self.mean < 0 and abs(lead) > 2 * sure and abs(lead - self.mean) > 3 * sure:
            self.pairs = self.weight = self.mean = self.spread = 0.0
        fade, weight, off = 1 - 1 / _MEMORY, 1 / variance, lead - self.mean
        self.pairs, self.weight = self.pairs * fade + 1, self.weight * fade + weight
        self.mean += off * weight / self.weight
        self.spread = self.spread * fade + weight * off * (lead - self.mean)


class _Record:
    """Which arm serves at one octave of load, and what is known of the others there."""

    def __init__(self, arms: Sequence[str], lag: int, rows: int, like: _Record | None) -> None:
        """`like`: the nearest record."""
        self._lag = lag
        self.serving: str = like.serving if like else POLICY
        varies = {arm: like.arms[arm].variance if like else (arm != NONE) / rows for arm in arms}
        longest = {arm: _LONGEST_BLOCK if arm == POLICY else _LONGEST_PROBE for arm in arms}
        self.arms: dict[str, _Arm] = {arm: _Arm(varies[arm], longest[arm]) for arm in arms}
        self.leads = {arm: _Lead(wait=_FIRST_HOLD) for arm in arms if arm != self.serving}
        if self.serving != NONE:
            self.leads = {arm: _Lead() for arm in self.leads}
        self._pairs = 0
        self.restart()

    def restart(self) -> None:
        """Begin a block of the arm that serves, beside which there is none so far."""
        self._block = self._noted = _Block(self.serving)
        self._before = _Block(self.serving)
        """What the arm that serves delivered since the last probe."""

    def _least(self, arm: str) -> int:
        """The steps that a block takes: fewer where arms differ much, and at first."""
        leads = [self.leads[arm]] if arm in self.leads else self.leads.values()
        precision = max(_PRECISION, min(abs(lead.mean) for lead in leads) / 5)
        return self._lag + min(self.arms[arm].length(precision), 2 << min(self._pairs, 9))

    def next(self) -> tuple[str, _Block]:
        """What the next step does, and its block."""
        block, serving = self._block, self.serving
        if block.arm != serving and block.decided >= self._least(block.arm):
            block = self._block = _Block(serving)
        due, lead = min(self.leads.items(), key=lambda each: each[1].wait - each[1].waited)
        left = lead.wait - lead.waited
        if block.arm == serving:
            for each in self.leads.values():
                each.waited += 1
            if left <= 0 and self._before.steps + block.steps >= self._least(serving) - self._lag:
                lead.waited = 0
                block = self._block = _Block(due)
        block.decided += 1
        if block.arm != NONE:
            return PLAN if block.arm == POLICY else BASE, block
        if serving != NONE or left <= self._least(NONE):
            return PROBE, block
        holds = min(each.holds for each in self.leads.values())
        return KEEP if holds <= _KEPT_HOLDS else HOLD, block

    def note(self, step: GuardDecision, work_s: float, took_s: float) -> bool:
        """Take in a step; whether another arm serves from now on."""
        if step.block is not self._noted:
            if self._close(self._noted):
                return True
            self._noted = step.block
        if step.is_timed:
            arm = self.arms[step.block.arm]
            arm.note(step.block, step, work_s, took_s)
            if step.block.arm == self.serving and step.block.steps >= arm.length():
                self._close(step.block)
        return False

    def _close(self, block: _Block) -> bool:
        """Take in a block; whether another arm serves from now on."""
        before, arm = self._before, self.arms[block.arm]
        if not block.steps or (block.arm != self.serving and not before.steps):
            return False
        pace, variance = arm.pace(block)
        if block.arm == self.serving:
            for name, lead in self.leads.items():
                margin = _SUSPICION * math.sqrt(variance)
                if (
                    self.serving != NONE
                    and lead.mean < 0
                    and pace + margin < math.log(self.arms[name].rate)
                ):
                    lead.waited, before.steps, before.work_s, before.took_s = lead.wait, 0, 0.0, 0.0
            before.steps += block.steps
            before.work_s += block.work_s
            before.took_s += block.took_s
            block.steps, block.work_s, block.took_s = 0, 0.0, 0.0
            return False
        lead = self.leads[block.arm]
        pace_before, variance_before = self.arms[self.serving].pace(before)
        lead.take(pace - pace_before, variance + variance_before + _UNKNOWN**2)
        times = block.took_s / block.steps / before.took_s * before.steps
        self._before = _Block(self.serving)
        self._pairs += 1
        errors = _ERRORS if self.serving != NONE else 1.0  # in doubt, speculate
        if lead.pairs > _PAIRS - 1 and lead.mean > errors * lead.error:
            self._serve(block.arm, lead, 1 / times)
            return True
        self._plan_probe(block.arm, lead, times)
        return False

    def _serve(self, arm: str, lead: _Lead, times: float) -> None:
        """Let another arm serve; by how much it leads stays known."""
        loser, self.serving = self.serving, arm
        self.leads = {each: _Lead() for each in self.arms if each != arm}
        known = self.leads[loser] = _Lead(lead.pairs, lead.weight, -lead.mean, lead.spread)
        self._plan_probe(loser, known, times)
        self.restart()

    def _plan_probe(self, arm: str, lead: _Lead, times: float) -> None:
        """Say when an arm is tried again, a step of which takes so many times as long."""
        least = self._least(self.serving)
        if self.serving != NONE:
            longest = max(_LONGEST_WAIT, int(self._least(arm) / _PROBE_SHARE))
            times = 2 if lead.mean + 2 * lead.error < 0 else _DOUBT
            wait = least if lead.pairs < _PAIRS - 1 else int(lead.wait * times) + 1
            lead.wait = min(max(wait, least), longest)
        elif lead.mean + lead.error > 0:
            lead.wait = least
        else:
            loses = self._least(arm) * times * -math.expm1(lead.mean)  # steps of none
            wait = min(int(loses / _TRIAL_SHARE), _LONGEST_HOLD)
            kept = lead.holds < _KEPT_HOLDS
            lead.wait = _FIRST_HOLD << lead.holds if kept else max(wait, _FIRST_HOLD)
            lead.holds += 1


class Guard:
    """Says of each step of one engine which arm it is."""

    def __init__(
        self, plain_s: PlainSeconds, lag: int = 1, arms: Sequence[str] = (NONE, POLICY)
    ) -> None:
        """`lag`: so many steps after a change-over, a step still bears marks of what was before."""
        self._plain_s, self._lag, self._arms = plain_s, lag, arms
        self._records: dict[int, _Record] = {}
        self._octave = 0
        self._alike, self._did = 0, (POLICY, False)
        """How many steps before the present one did the same, and what."""
        self._interrupted = True
        self.switches = 0
        """How often another arm began to serve, at any load."""

    def decide(self, rows: int, context_tokens: int, prompt_tokens: int = 0) -> GuardDecision:
        """What the next step does: of so many rows, with so many known tokens in all, and reading
        so many prompt tokens besides."""
        plain_s = self._plain_s(rows, context_tokens, 0)
        whole_s = self._plain_s(rows, context_tokens, prompt_tokens) if prompt_tokens else plain_s
        record = self._record(max(rows, 1))
        state, block = record.next()
        does = block.arm, state == KEEP  # which takes what reading takes, too
        self._alike = self._alike + 1 if does == self._did else 0
        self._did, is_timed = does, self._alike >= self._lag and state != KEEP
        return GuardDecision(
            state, is_timed, record, block, rows, prompt_tokens > 0, plain_s, whole_s
        )

    def interrupt(self) -> None:
        """Something else was served: what comes next is blurred by it, and next to nothing."""
        self._alike, self._interrupted = -1, True

    def note(self, decision: GuardDecision, seconds: float, tokens: int, emitting: int) -> None:
        """Take in what a step took, and how many tokens it emitted, of how many of its rows."""
        if 0 < seconds < math.inf and decision.rows > 0:
            # Tokens that are there already save steps later, while prompts are read in any case.
            saved_s = decision.plain_s * (tokens - emitting) / decision.rows
            work_s = decision.whole_s + saved_s
            self.switches += decision.record.note(decision, work_s, seconds)

    def _record(self, rows: int) -> _Record:
        """The record of an octave, which stays the same until the load is clearly another."""
        load, before = math.log2(rows), self._octave
        if not self._records or abs(load - before) > 0.75:
            self._octave = round(load)
        if self._octave not in self._records:
            near = min(self._records, key=lambda each: abs(each - load), default=None)
            like = None if near is None else self._records[near]
            self._records[self._octave] = _Record(self._arms, self._lag, rows, like)
        record = self._records[self._octave]
        if self._octave != before or self._interrupted:
            record.restart()
            self._interrupted = False
        return record

    def rates(self, decision: GuardDecision) -> dict[str, float]:
        """By arm, tokens per second at a step's load, as far as they are known.

        What serves is measured all the time, others beside it.
        """
        record = decision.record
        serving = record.arms[record.serving]
        if not serving.seen:
            return {}
        per_s = decision.rows / decision.plain_s * serving.rate
        leads = {arm: lead.mean for arm, lead in record.leads.items() if lead.pairs}
        return {
            arm: per_s * math.exp(lead) for arm, lead in ({record.serving: 0.0} | leads).items()
        }

    def serving(self, decision: GuardDecision) -> str:
        """The arm that serves at a step's load; none: speculation is held off."""
        return decision.record.serving
