"""Holds speculation off where it is slower than none, by what steps took and what they emitted.

Whoever runs an engine's steps asks and tells one guard, and its decision holds for all ranks:

    decide(rows, context_tokens, prompt_tokens)   before a step: a `GuardDecision`
    note(decision, seconds, tokens, emitting)     after it: what it took and emitted

Loads and context lengths are put in buckets, and each bucket is judged by itself. A *probe* is a
few steps without speculation: it says what those take. From then on every step that speculates
loses (or gains) time against that, and where more is lost than chance would explain, speculation
is *held off*: first briefly, and twice as long each time it fails again.

Seconds are divided by what the cost model says of the same step without drafts, so that rows,
contexts and prompts within a bucket may differ; however wrong the model is, it is wrong on both
sides. It may be wrong about prompts in another way than about the rest, and steps that read some
may leave a CUDA graph: steps that read prompts are compared with such steps alone. What either
kind loses goes into the bucket's one account, in steps without speculation and prompts: a step of

    pace    such steps long, of a kind of which one without drafts takes
    plain   of them, that emits
    extra   tokens per row more than that one, loses

    pace - plain - extra,

because tokens that are there already save steps later, while prompts are read once in any case.

A guard reads no clock and draws no random numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

PLAN, PROBE, KEEP, HOLD = STATES = ("plan", "probe", "keep", "hold")
"""What a step does: what the policy plans; or nothing. In a probe, which is short, the neural
drafter misses what is said; in a short hold the drafter reads on; in a longer one, requests that
run are without the drafter from then on."""

PlainSeconds = Callable[[int, int, int], float]
"""What the cost model says of a step of so many rows, context tokens and prompt tokens, without
drafts."""

_FIRST_PROBE, _LONGEST_WAIT = 4, 2048
"""Steps that speculate before a bucket is probed first, and at most between two probes."""
_DOUBTFUL_WAIT = 16
"""Steps between two probes where what they say varies too much to tell which is faster."""
_PROBE_SHARE = 0.004
"""The most that probes may cost, of the time; it counts where speculation is far ahead."""
_CLEAN, _LONG_PROBE, _LONG_PROBES = 2, 8, 12
"""Steps of a probe behind those that the change-over blurs; where prompts are read often and such
steps are not judged yet; and so many probes are that long at most."""
_OFTEN = 1 / 10
"""Prompts are read often in that share of the steps."""
_SAMPLES, _LEAST_SAMPLES = 64, 2
"""Steps without speculation that are remembered of either kind, and with which it is judged."""
_RECENT, _WATCHED = 15, 4
"""The last steps of a kind, whose median says what is usual, and with how many it does."""
_HICCUP = 5.0
"""A step that takes so often the usual is no reason to change anything, and is ignored."""
_STEPS_BEFORE_HOLD = 40
"""Steps of the engine that speculate before it is held off anywhere."""
_MEMORY = 64
"""A bucket's averages are over about so many steps, its spread over four times as many."""
_CERTAINTY = 40.0
"""What may be lost, by the variance of what a step loses: a plan that gains g per step is taken for
one that loses in about one of exp(2 * g * 40) stretches."""
_LEAST_LOSS = 4.0
"""What may be lost in any case, in steps without speculation."""
_MOST_LOSS = 640.0
"""What may be lost at most by what one request alone emits, beside twice the least. With more
requests it is as many times less, as their chances even out: what varies more is no chance."""
_MOST_LOSS_BY_TIMES = 160.0
"""Likewise by what steps take, which does not even out."""
_FIRST_HOLD, _LONG_HOLD, _LONGEST_HOLD = 32, 800, 12_800
"""Steps held off at first; after many failures; and where trying again loses much."""
_SHORT_HOLD = 64
"""In holds of so many steps the neural drafter reads on."""
_RETRY_SHARE = 1 / 100
"""What trying again may lose, as a share of the steps held off before."""


def _median(times: Collection[float]) -> float:
    """The lower one, where there are two."""
    return sorted(times)[(len(times) - 1) // 2]


class GuardDecision(NamedTuple):
    """What one step is to do, and what has to be known of it when it is noted."""

    state: str
    is_timed: bool
    """Whether its time says anything: not behind a change-over."""
    key: tuple[int, int]
    rows: int
    reads_prompts: bool
    plain_s: float
    """What the cost model says of it without drafts and prompts."""
    weight: float
    """How many times as long it takes, by the same model, with its prompts."""

    @property
    def speculates(self) -> bool:
        """Whether the step does what the policy plans."""
        return self.state == PLAN


@dataclass(slots=True)
class _Kind:
    """What is known of steps that read prompts, or of those that do not, in one bucket.

    Times are in those of the cost model.
    """

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """The last steps, speculating or not."""
    seen: int = 0
    """How many there were."""
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """Steps without speculation: their weight, and what they took."""
    factor: float = math.nan
    """What such a step takes; NaN: this kind is not judged yet."""
    factor_error: float = 0.0
    """The standard error of that, as a share of it."""

    def take_step(self, took: float) -> bool:
        """Take in a step; whether it took what is usual. If all get slower, so does the median."""
        self.recent.append(took)
        self.seen += 1
        if self.seen < _WATCHED:  # the first may compile something
            return False
        return took <= _HICCUP * _median(self.recent)

    def note_plain(self, weight: float, took: float) -> None:
        """Take in a step without speculation.

        Beside steps that speculate and are slow, a hiccup may look usual. So what `take_step` let
        pass is compared once more, with steps without speculation alone.
        """
        self.samples.append((weight, took))
        usual = _median([took for _, took in self.samples])
        clean = [sample for sample in self.samples if sample[1] <= _HICCUP * usual]
        count = len(clean)
        if count >= _LEAST_SAMPLES:  # a long step counts for more, as in what is lost
            whole = sum(weight for weight, _ in clean)
            self.factor = sum(weight * took for weight, took in clean) / whole
            apart = sum((weight * (took - self.factor)) ** 2 for weight, took in clean)
            self.factor_error = math.sqrt(apart * count / (count - 1)) / whole / self.factor


@dataclass(slots=True)
class _Average:
    """A running mean, and the variance about it."""

    mean: float = 0.0
    variance: float = 0.0

    def take(self, value: float, count: int) -> None:
        """Take in a value; there are so many now."""
        self.mean += max(1 / count, 1 / _MEMORY) * (value - self.mean)
        share = max(1 / count, 1 / (4 * _MEMORY))
        self.variance += share * ((value - self.mean) ** 2 - self.variance)


@dataclass(slots=True)
class _Bucket:
    """What is known at about one load and context length.

    Averages are over steps that speculate, in steps without speculation and prompts.
    """

    kinds: tuple[_Kind, _Kind] = field(default_factory=lambda: (_Kind(), _Kind()))
    """Steps that do not read prompts, and steps that do."""
    time_without: _Average = field(default_factory=_Average)
    """What a step would take without speculation."""
    time_added: _Average = field(default_factory=_Average)
    """How much longer it takes."""
    tokens_added: _Average = field(default_factory=_Average)
    """Tokens that it emits per row, beyond those without speculation."""
    tokens_per_row: _Average = field(default_factory=_Average)
    """All that it emits per row."""
    time_without_error: _Average = field(default_factory=_Average)
    """The standard error of `time_without`."""
    most_lost_by_tokens: float = math.inf
    """What may be lost at most by what requests emit before speculation is held off."""
    averaged_steps: int = 0
    """How many steps the averages are over."""
    lost: float = 0.0
    """What was lost, of late."""
    gained: float = 0.0
    """Likewise, since it was last held off."""
    hold_steps: int = 0
    """For how many steps it was held off last."""
    hold_steps_left: int = 0
    """Steps still to be held off."""
    next_hold_steps: int = _FIRST_HOLD
    """How long it is held off next."""
    probes: int = 0
    """How many there were."""
    steps_to_probe: int = _FIRST_PROBE
    """Steps that speculate until the next probe."""

    @property
    def lacks_prompts(self) -> bool:
        """Whether probes should be longer, to see prompts read without speculation."""
        others, reading = self.kinds
        if reading.factor > 0 or self.probes > _LONG_PROBES:
            return False
        return reading.seen >= max(_LONG_PROBE, _OFTEN * (others.seen + reading.seen))

    @property
    def loss(self) -> float:
        """What a step loses on average."""
        return self.time_added.mean - self.tokens_added.mean

    @property
    def allowed(self) -> float:
        """What may be lost before speculation is held off."""
        by_chance = min(_CERTAINTY * self.tokens_added.variance, self.most_lost_by_tokens)
        return max(
            by_chance + min(_CERTAINTY * self.time_added.variance, _MOST_LOSS_BY_TIMES), _LEAST_LOSS
        )

    def unit(self, kind: _Kind) -> float:
        """What a step without speculation and prompts takes, as far as it is known."""
        factor = self.kinds[False].factor
        return kind.factor if math.isnan(factor) else factor


class Guard:
    """Says of each step of one engine whether it speculates."""

    def __init__(self, plain_s: PlainSeconds, lag: int = 1) -> None:
        """`lag`: so many steps after a change-over, a step still bears marks of what was before."""
        self._plain_s, self._lag = plain_s, lag
        self._buckets: dict[tuple[int, int], _Bucket] = {}
        self._key: tuple[int, int] | None = None
        self._probing = 0
        """Steps that the present probe has still."""
        self._counted_steps = 0
        """Clean steps that speculated, as far as they are counted."""
        self._alike = 0
        """How many steps before the present one speculated if it does, and did not if not."""
        self._speculated = True
        self.switches = 0
        """How often it has begun to hold speculation off, in any bucket."""

    def decide(self, rows: int, context_tokens: int, prompt_tokens: int = 0) -> GuardDecision:
        """What the next step does: of so many rows, with so many known tokens in all, and reading
        so many prompt tokens besides."""
        plain_s = self._plain_s(rows, context_tokens, 0)
        whole_s = self._plain_s(rows, context_tokens, prompt_tokens) if prompt_tokens else plain_s
        key = self._key = self._key_of(rows, context_tokens)
        state = self._state(self._buckets.get(key) or self._new_bucket(key))
        speculates = state == PLAN
        self._alike = self._alike + 1 if speculates == self._speculated else 0
        self._speculated = speculates
        is_timed = self._alike >= self._lag and state != KEEP  # it takes what reading takes, too
        return GuardDecision(
            state, is_timed, key, rows, prompt_tokens > 0, plain_s, whole_s / plain_s
        )

    def interrupt(self) -> None:
        """Something else was served: what comes next is blurred by it."""
        self._alike, self._probing = -1, 0

    def _state(self, bucket: _Bucket) -> str:
        if bucket.hold_steps_left > 0:
            self._probing = 0
            bucket.hold_steps_left -= 1
            if bucket.hold_steps_left == 0:
                self._prepare_retry(bucket)
            return KEEP if bucket.hold_steps <= _SHORT_HOLD else HOLD
        if self._probing == 0 and bucket.steps_to_probe <= 0:
            bucket.probes += 1
            bucket.steps_to_probe = self._wait(bucket)
            self._probing = self._lag + (_LONG_PROBE if bucket.lacks_prompts else _CLEAN)
        if self._probing > 0:
            self._probing -= 1
            return PROBE
        bucket.steps_to_probe -= 1
        return PLAN

    def _wait(self, bucket: _Bucket) -> int:
        """Steps until the next probe: more after each, and as many as keep probes cheap."""
        least = _FIRST_PROBE << min(bucket.probes, 5)
        if bucket.lacks_prompts:
            return min(least, _DOUBTFUL_WAIT)
        if not bucket.averaged_steps:
            return least
        if abs(bucket.loss) < 3 * bucket.time_without_error.mean:
            return _DOUBTFUL_WAIT
        pace = bucket.time_without.mean + bucket.time_added.mean
        lift = (pace - bucket.loss) / pace
        cost = (self._lag + _CLEAN) * max(lift - 1, 0)
        # What is affordable rests on what was seen so far, which is little at first.
        seen = 8 * least * max(lift, 1.0) ** 2
        return min(max(least, int(cost / _PROBE_SHARE)), int(seen), _LONGEST_WAIT)

    def _prepare_retry(self, bucket: _Bucket) -> None:
        """Let a bucket speculate again, on so much credit as trying may lose."""
        credit = max(bucket.allowed / 4, bucket.next_hold_steps * _RETRY_SHARE / 4)
        bucket.lost = bucket.allowed - credit
        bucket.gained, bucket.steps_to_probe = 0.0, _FIRST_PROBE << 5
        longest = min(max(credit / _RETRY_SHARE, _LONG_HOLD), _LONGEST_HOLD)
        bucket.next_hold_steps = min(2 * bucket.next_hold_steps, int(longest))

    def note(self, decision: GuardDecision, seconds: float, tokens: int, emitting: int) -> None:
        """Take in what a step took, and how many tokens it emitted, of how many of its rows."""
        if not decision.is_timed or not 0 < seconds < math.inf or decision.rows <= 0:
            return
        bucket = self._buckets[decision.key]
        if decision.speculates and bucket.hold_steps_left > 0:
            return  # with steps in flight, one may come that was decided before
        kind = bucket.kinds[decision.reads_prompts]
        took = seconds / decision.plain_s / decision.weight
        if not kind.take_step(took):
            return
        if not decision.speculates:
            kind.note_plain(decision.weight, took)
            return
        self._counted_steps = min(self._counted_steps + 1, _STEPS_BEFORE_HOLD)
        if math.isnan(kind.factor):
            return
        bucket.averaged_steps += 1
        count = bucket.averaged_steps
        unit = bucket.unit(kind) / decision.weight
        plain, pace = kind.factor / unit, took / unit
        extra = (tokens - emitting) / decision.rows
        bucket.time_without.take(plain, count)
        bucket.time_added.take(pace - plain, count)
        bucket.tokens_added.take(extra, count)
        bucket.tokens_per_row.take(tokens / decision.rows, count)
        bucket.time_without_error.take(plain * kind.factor_error, count)
        self._lose(bucket, pace - plain - extra)

    def _lose(self, bucket: _Bucket, loss: float) -> None:
        """Book a loss or gain; hold speculation off if too much was lost."""
        # Gains are forgotten, or a plan that was good for long could lose as long.
        bucket.lost = max(bucket.lost + loss, min(bucket.lost, 0.0))
        bucket.gained -= loss
        allowed = bucket.allowed
        if bucket.gained > allowed:
            bucket.gained, bucket.next_hold_steps = 0.0, _FIRST_HOLD
        if self._counted_steps < _STEPS_BEFORE_HOLD:
            bucket.lost = min(bucket.lost, allowed)
        if bucket.lost > allowed:
            # However little credit a retry has, it loses this much before it is judged. At most
            # twice what was next, or a hiccup in the first steps would cost thousands.
            least = (self._lag + 2) * bucket.loss
            if least > bucket.next_hold_steps * _RETRY_SHARE:
                bucket.next_hold_steps = min(2 * bucket.next_hold_steps, _LONGEST_HOLD)
            bucket.hold_steps = bucket.hold_steps_left = bucket.next_hold_steps
            self.switches += 1

    def _key_of(self, rows: int, context_tokens: int) -> tuple[int, int]:
        """The bucket: two per doubling of rows, one per doubling of a row's context tokens.

        It stays the same until it is clearly another, so that nothing swings at an edge.
        """
        load = 2 * math.log2(max(rows, 1))
        length = math.log2(max(context_tokens / max(rows, 1), 256))
        if self._key is not None:
            load = self._key[0] if abs(load - self._key[0]) <= 0.75 else load
            length = self._key[1] if abs(length - self._key[1]) <= 0.75 else length
        return round(load), round(length)

    def _new_bucket(self, key: tuple[int, int]) -> _Bucket:
        """A bucket that knows what its nearest neighbour does, and judges that soon."""
        bucket = self._buckets[key] = _Bucket()
        bucket.most_lost_by_tokens = 2 * _LEAST_LOSS + _MOST_LOSS / 2 ** (key[0] / 2)
        known = [each for each, other in self._buckets.items() if other.averaged_steps]
        if known:
            nearest = min(known, key=lambda each: abs(each[0] - key[0]) + abs(each[1] - key[1]))
            other = self._buckets[nearest]
            bucket.kinds[False].factor = other.kinds[False].factor
            bucket.probes = min(max(other.probes - 2, 0), 6)
            if other.hold_steps_left > 0:
                bucket.hold_steps = bucket.hold_steps_left = min(other.hold_steps_left, _FIRST_HOLD)
                bucket.tokens_added.variance = other.tokens_added.variance
                bucket.time_added.variance = other.time_added.variance
        return bucket

    def rates(self, decision: GuardDecision) -> tuple[float, float]:
        """Tokens per second with speculation and without, at a step's load; NaN if unknown."""
        bucket = self._buckets[decision.key]
        if not bucket.averaged_steps:
            return math.nan, math.nan
        step_s = decision.plain_s * bucket.unit(bucket.kinds[True])
        per_s, plain = decision.rows * bucket.tokens_per_row.mean / step_s, bucket.time_without.mean
        return per_s / (plain + bucket.time_added.mean), per_s / (plain + bucket.tokens_added.mean)

    def hold_steps_left(self, decision: GuardDecision) -> int:
        """For how many steps speculation is still held off at a step's load; 0: it is not."""
        return self._buckets[decision.key].hold_steps_left
