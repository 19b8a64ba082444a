"""Holds speculation off where it is slower than none, by what steps took and what they emitted.

Whoever runs an engine's steps asks and tells one guard, and its word holds for all ranks:

    decide(rows, context_tokens, reads_prompts) -> Said     before a step: speculate, or not
    note(said, seconds, tokens)                             after it: what it took, what it emitted

Loads and context lengths are put in buckets, and each bucket is judged by itself. A *probe* is a
few steps without speculation: it says what those take. From then on every step that speculates
loses (or gains) time against that, and where more is lost than chance would explain, speculation
is *held off*: first briefly, and twice as long each time it fails again. Seconds are divided by
what the cost model says of the same step without drafts, so that rows and contexts within a bucket
may differ; however wrong the model is, it is wrong on both sides.

A guard reads no clock and draws no random numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

PLAN, PROBE, HOLD = "plan", "probe", "hold"
WORDS = (PLAN, PROBE, HOLD)
"""What a step does: what the policy plans; nothing, but requests keep the neural drafter; nothing,
and requests that run in it are without the drafter from then on."""

PlainSeconds = Callable[[int, int], float]
"""What the cost model says of a step of so many rows and context tokens without drafts."""

_FIRST_PROBE, _LONGEST_WAIT = 2, 2048
"""Steps that speculate before a bucket is probed first, and at most between two probes."""
_DOUBTFUL_WAIT = 16
"""Steps between two probes where what they say varies too much to tell which is faster."""
_PROBE_SHARE = 0.004
"""The most that probes may cost, of the time; it counts where speculation is far ahead."""
_CLEAN, _LONGEST_PROBE = 2, 10
"""Steps of a probe that are counted, behind those that the change-over blurs, and the most that it
has if prompts are read in them."""
_VAIN_WAIT = 1024
"""Steps until the next probe where all steps of one read prompts."""
_SAMPLES = 64
"""Steps without speculation that a bucket remembers."""
_WARM = 4
"""So many steps of a bucket are taken for as fast as the fastest of them."""
_PLAIN_CLIP, _PLAN_CLIP = 1.5, 4.0
"""A step counts as at most so often the usual one: a hiccup is no reason to change anything."""
_MEMORY = 64
"""A bucket's averages are over about so many steps, its spread over four times as many."""
_CERTAINTY = 40.0
"""What may be lost, by the variance of what a step loses: a plan that gains g per step is taken for
one that loses in about one of exp(2 * g * 40) stretches."""
_LEAST_LOSS = 4.0
"""What may be lost in any case, in steps without speculation."""
_MOST_LOSS = 640.0
"""What may be lost at most by one request alone, beside twice the least. With more requests it is
as many times less, as their chances even out: what varies more than that is no chance."""
_FIRST_HOLD, _LONG_HOLD, _LONGEST_HOLD = 32, 800, 12_800
"""Steps held off at first; after many failures; and where trying again loses much."""
_RETRY_SHARE = 1 / 100
"""What trying again may lose, as a share of the steps held off before."""


class Said(NamedTuple):
    """What one step is to do, and what has to be known of it when it is noted."""

    word: str
    counts: bool
    """Whether its time says anything: not behind a change-over, nor if it reads prompts."""
    key: tuple[int, int]
    rows: int
    plain_s: float

    @property
    def speculates(self) -> bool:
        """Whether the step does what the policy plans."""
        return self.word == PLAN


@dataclass(slots=True)
class _Bucket:
    """What is known at about one load and context length; times are in those of the cost model."""

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """Steps without speculation."""
    factor: float = math.nan
    """What such a step takes."""
    doubt: float = 0.0
    """The standard error of that, as a share of it."""
    pace: float = math.nan
    """What a step that speculates takes, on average."""
    emitted: float = math.nan
    """Tokens that it emits per row."""
    variance: float = 0.0
    """Of what a step loses."""
    most: float = math.inf
    """What may be lost at most before speculation is held off."""
    noted: int = 0
    lost: float = 0.0
    """Steps without speculation that would have taken as long as what was lost, of late."""
    gained: float = 0.0
    """Likewise, since it was last held off."""
    held: int = 0
    """Steps still to be held off."""
    hold: int = _FIRST_HOLD
    """How long it is held off next."""
    probes: int = 0
    wait: int = _FIRST_PROBE
    """Steps that speculate until the next probe."""


class Guard:
    """Says of each step of one engine whether it speculates."""

    def __init__(self, plain_s: PlainSeconds, lag: int = 1) -> None:
        """`lag`: so many steps after a change-over, a step still bears marks of what was before."""
        self._plain_s, self._lag = plain_s, lag
        self._buckets: dict[tuple[int, int], _Bucket] = {}
        self._key: tuple[int, int] | None = None
        self._probing = self._unclean = 0
        """Steps of the present probe: that may follow at most, and that must be counted still."""
        self._alike = 0
        """How many steps before the present one speculated if it does, and did not if not."""
        self._speculated = True
        self.switches = 0
        """How often it has begun to hold speculation off, in any bucket."""

    def decide(self, rows: int, context_tokens: int, reads_prompts: bool = False) -> Said:
        """What the next step does."""
        plain_s = self._plain_s(rows, context_tokens)
        key = self._key = self._key_of(rows, context_tokens)
        bucket = self._buckets.get(key) or self._new_bucket(key)
        word = self._word(bucket)
        speculates = word == PLAN
        self._alike = self._alike + 1 if speculates == self._speculated else 0
        self._speculated = speculates
        counts = self._alike >= self._lag and not reads_prompts
        if word == PROBE:
            self._go_on_probing(bucket, counts)
        return Said(word, counts, key, rows, plain_s)

    def interrupt(self) -> None:
        """Something else was served: what comes next is blurred by it."""
        self._alike, self._probing = -1, 0

    def _word(self, bucket: _Bucket) -> str:
        if bucket.held > 0:
            self._probing = 0
            bucket.held -= 1
            if bucket.held == 0:
                self._retry(bucket)
            return HOLD
        if self._probing == 0 and bucket.wait <= 0:
            bucket.probes += 1
            bucket.wait = self._wait(bucket)
            self._probing, self._unclean = self._lag + _LONGEST_PROBE, _CLEAN
        if self._probing > 0:
            return PROBE
        bucket.wait -= 1
        return PLAN

    def _go_on_probing(self, bucket: _Bucket, counts: bool) -> None:
        """Count a step of a probe, which ends where it has seen enough, or nothing for long."""
        self._probing -= 1
        self._unclean -= counts
        if self._unclean == 0:
            self._probing = 0
        elif self._probing == 0 and self._unclean == _CLEAN:
            bucket.wait = max(bucket.wait, _VAIN_WAIT)

    def _wait(self, bucket: _Bucket) -> int:
        """Steps until the next probe: more after each, and as many as keep probes cheap."""
        lift = bucket.emitted * bucket.factor / bucket.pace
        if abs(lift - 1) < 3 * bucket.doubt:
            return _DOUBTFUL_WAIT
        cost = (self._lag + _CLEAN) * max(lift - 1, 0) if math.isfinite(lift) else 0.0
        least = _FIRST_PROBE << min(bucket.probes, 6)
        # What is affordable rests on what was seen so far, which is little at first.
        seen = 8 * least * max(lift, 1.0) ** 2 if math.isfinite(lift) else least
        return min(max(least, int(cost / _PROBE_SHARE)), int(seen), _LONGEST_WAIT)

    def _retry(self, bucket: _Bucket) -> None:
        """Let a bucket speculate again, on so much credit as trying may lose."""
        credit = max(_allowed(bucket) / 4, bucket.hold * _RETRY_SHARE / 4)
        bucket.lost = _allowed(bucket) - credit
        bucket.gained, bucket.wait = 0.0, _FIRST_PROBE << 6
        longest = min(max(credit / _RETRY_SHARE, _LONG_HOLD), _LONGEST_HOLD)
        bucket.hold = min(2 * bucket.hold, int(longest))

    def note(self, said: Said, seconds: float, tokens: int) -> None:
        """Take in what a step took and how many tokens it emitted, all rows together."""
        if not said.counts or not 0 < seconds < math.inf or said.rows <= 0:
            return
        bucket = self._buckets[said.key]
        took = seconds / said.plain_s
        if said.word != PLAN:
            bucket.plain.append(took)
            unknown = math.isnan(bucket.factor)
            bucket.factor, bucket.doubt = _clipped_mean(bucket.plain)
            if unknown and bucket.noted:
                lost = bucket.noted * (bucket.pace / bucket.factor - bucket.emitted)
                bucket.lost = min(max(lost, 0.0), _LEAST_LOSS)
        elif bucket.held == 0:  # with steps in flight, one may come that was decided before
            self._note_plan(bucket, took, tokens / said.rows)

    def _note_plan(self, bucket: _Bucket, took: float, emitted: float) -> None:
        bucket.noted += 1
        share = max(1 / bucket.noted, 1 / _MEMORY)
        if bucket.noted > _WARM:
            took = min(took, _PLAN_CLIP * bucket.pace)
            bucket.pace = _moved(bucket.pace, took, share)
        else:  # these may compile something
            took = bucket.pace = min(took, bucket.pace) if bucket.noted > 1 else took
        bucket.emitted = _moved(bucket.emitted, emitted, share)
        factor = bucket.factor
        if math.isnan(factor):
            return
        loss = took / factor - emitted
        apart = loss - (bucket.pace / factor - bucket.emitted)
        bucket.variance = _moved(bucket.variance, apart * apart, max(share / 4, 1 / bucket.noted))
        self._lose(bucket, loss)

    def _lose(self, bucket: _Bucket, loss: float) -> None:
        """Book a loss or gain; hold speculation off if too much was lost."""
        # Gains are forgotten, or a plan that was good for long could lose as long.
        bucket.lost = max(bucket.lost + loss, min(bucket.lost, 0.0))
        bucket.gained -= loss
        allowed = _allowed(bucket)
        if bucket.gained > allowed:
            bucket.gained, bucket.hold = 0.0, _FIRST_HOLD
        if bucket.lost > allowed:
            # However little credit a retry has, it loses this much before it is judged. At most
            # twice what was next, or a hiccup in the first steps would cost thousands.
            least = (self._lag + 2) * (bucket.pace / bucket.factor - bucket.emitted)
            if least > bucket.hold * _RETRY_SHARE:
                bucket.hold = min(2 * bucket.hold, _LONGEST_HOLD)
            bucket.held = bucket.hold
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
        bucket.most = 2 * _LEAST_LOSS + _MOST_LOSS / 2 ** (key[0] / 2)
        known = [each for each, other in self._buckets.items() if not math.isnan(other.factor)]
        if known:
            nearest = min(known, key=lambda each: abs(each[0] - key[0]) + abs(each[1] - key[1]))
            other = self._buckets[nearest]
            bucket.factor = other.factor
            bucket.probes = max(other.probes - 2, 0)
            if other.held > 0:
                bucket.held, bucket.variance = min(other.held, _FIRST_HOLD), other.variance
        return bucket

    def rates(self, said: Said) -> tuple[float, float]:
        """Tokens per second with speculation and without, at a step's load; NaN if unknown."""
        bucket = self._buckets[said.key]
        per_s = said.rows / said.plain_s
        return per_s * bucket.emitted / bucket.pace, per_s / bucket.factor

    def holds(self, said: Said) -> int:
        """For how many steps speculation is still held off at a step's load; 0: it is not."""
        return self._buckets[said.key].held


def _allowed(bucket: _Bucket) -> float:
    """What may be lost before speculation is held off, in steps without it."""
    return max(_LEAST_LOSS, min(_CERTAINTY * bucket.variance, bucket.most))


def _moved(mean: float, value: float, share: float) -> float:
    """A running mean after another value."""
    return value if math.isnan(mean) else mean + share * (value - mean)


def _clipped_mean(values: deque[float]) -> tuple[float, float]:
    """The mean, and its standard error as a share of it.

    What is far above or below the median is taken for that far only.
    """
    count = len(values)
    median = sorted(values)[(count - 1) // 2]
    low, high = median / _PLAIN_CLIP, median * _PLAIN_CLIP
    clipped = [min(max(value, low), high) for value in values]
    mean = sum(clipped) / count
    spread = sum((value - mean) ** 2 for value in clipped) / max(count - 1, 1)
    return mean, math.sqrt(spread / count) / mean
