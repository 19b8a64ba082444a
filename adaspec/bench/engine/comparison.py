"""What rounds are compared by: outputs, token by token with near-ties told apart, and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.bench.engine.client import Answer

NOISE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""By how much (in log-probability) the arithmetic of a type may move two tokens against each other
when other requests share the step: some twenty units in the last place of a logit about 20."""
FEWEST_ROUNDS = 8
"""Of fewer rounds no interval is given: drawn again from so few, they say little."""
RESAMPLES = 4_000

Key = tuple[str, str]
"""A prompt's workload and id."""
BestTokens = Callable[[Sequence[int]], Mapping[int, float]]
"""What the target says behind a text: its likeliest tokens' log-probabilities."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an output first leaves that of no speculation."""

    method: str
    workload: str
    id: str
    position: int
    """Output tokens that are the same."""
    expected: int | None
    """The token of no speculation; None where its output ends there."""
    found: int | None
    margin: float | None
    """Log-probability of the target's best token over the worse of the two; None where one of
    them is not among its likeliest."""
    near_tie: bool

    def __str__(self) -> str:
        margin = (
            "not among the target's best" if self.margin is None else f"{self.margin:.2g} apart"
        )
        return (
            f"{self.method}, request {self.workload}/{self.id}: token {self.position} is "
            f"{self.found}, without speculation {self.expected} ({margin})"
        )


def first_difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """The first position at which two outputs differ; None where they are the same."""
    for at, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return at
    return None if len(expected) == len(found) else min(len(expected), len(found))


def differences(
    expected: Mapping[Key, Sequence[int]],
    outputs: Iterable[tuple[str, Key, Sequence[int]]],
    prompts: Mapping[Key, Sequence[int]],
    best_tokens: BestTokens,
    noise: float,
) -> list[Difference]:
    """Every output that differs, each judged by the target itself.

    What ends an output is a token too, so one that is merely shorter was cut off: no near-tie.
    """
    judged: dict[tuple[str, Key, int, int | None], Difference] = {}
    for method, key, found in outputs:
        whole = expected[key]
        at = first_difference(whole, found)
        if at is None:
            continue
        one = whole[at] if at < len(whole) else None
        other = found[at] if at < len(found) else None
        name = (method, key, at, other)
        if name in judged:
            continue
        best = best_tokens([*prompts[key], *whole[:at]])
        margin = _margin(best, one, other)
        judged[name] = Difference(
            method, *key, at, one, other, margin, margin is not None and margin <= noise
        )
    return list(judged.values())


def _margin(best: Mapping[int, float], one: int | None, other: int | None) -> float | None:
    if one is None or other is None or one not in best or other not in best:
        return None
    return max(best.values()) - min(best[one], best[other])


@dataclass(frozen=True, slots=True)
class Timing:
    """What was timed of one round."""

    tokens: int
    """That arrived while every slot was taken: up to the first that could not be filled again."""
    seconds: float
    first_s: tuple[float, ...]
    """Time to the first token, per request."""
    gap_s: tuple[float, ...]
    """Between one piece and the next, as a reader sees them."""
    token_s: tuple[float, ...]
    """Seconds per output token behind the first, per request."""


def timing(answers: Sequence[Answer]) -> Timing:
    """What a round took; its tail, in which slots stand empty, counts for latencies alone."""
    sent_last_s = max(answer.sent_s for answer in answers)
    ends = [answer.arrived_s[-1] for answer in answers if answer.arrived_s]
    later = [end for end in ends if end > sent_last_s]
    until_s = min(later, default=max(ends, default=0.0))
    tokens = sum(
        count
        for answer in answers
        for at_s, count in zip(answer.arrived_s, answer.counts, strict=True)
        if at_s <= until_s
    )
    several = [answer for answer in answers if len(answer.arrived_s) > 1]
    return Timing(
        tokens=tokens,
        seconds=until_s - min(answer.sent_s for answer in answers),
        first_s=tuple(a.arrived_s[0] - a.sent_s for a in answers if a.arrived_s),
        gap_s=tuple(float(gap) for answer in several for gap in np.diff(answer.arrived_s)),
        token_s=tuple(
            (answer.arrived_s[-1] - answer.arrived_s[0]) / (len(answer.tokens) - answer.counts[0])
            for answer in several
        ),
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """Throughput of one method over another's."""

    ratio: float
    range: tuple[float, float]
    """The worst and the best round."""
    interval: tuple[float, float] | None
    """95%, from rounds drawn again with replacement."""


def paired_ratio(mine: Mapping[int, Timing], others: Mapping[int, Timing]) -> Ratio | None:
    """Over the rounds that both ran; None where there are none."""
    both = sorted(number for number in mine if number in others)
    if not both:
        return None
    tables = [
        np.array([(rounds[number].tokens, rounds[number].seconds) for number in both], np.float64)
        for rounds in (mine, others)
    ]
    each = _ratio(*tables)
    return Ratio(
        ratio=float(_ratio(*(table.sum(0) for table in tables))),
        range=(float(each.min()), float(each.max())),
        interval=_interval(tables) if len(both) >= FEWEST_ROUNDS else None,
    )


def _interval(tables: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """The same draws for both, so that a slow minute is slow for both."""
    rounds = len(tables[0])
    draws = np.random.default_rng(0).integers(rounds, size=(RESAMPLES, rounds))
    found = _ratio(*(table[draws].sum(1) for table in tables))
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def _ratio(mine: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of tokens per second, from rows of (tokens, seconds)."""
    return _tokens_per_s(mine) / _tokens_per_s(others)


def _tokens_per_s(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """NaN where no second passed."""
    seconds = np.where(table[..., 1] > 0, table[..., 1], np.nan)
    return np.asarray(table[..., 0] / seconds, np.float64)
