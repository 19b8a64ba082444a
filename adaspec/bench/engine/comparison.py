"""How rounds are compared: outputs token by token, near-ties being no faults, and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.bench.engine.client import Answer

NOISE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""By how much (in log-probability) the arithmetic of a type may move two tokens against each other
when other requests share the step: some twenty units in the last place of a logit about 20."""
MIN_ROUNDS = 8
"""Rounds from which on an interval is given: resampling fewer says little."""
RESAMPLES = 4_000

Key = tuple[str, str]
"""A prompt's workload and id."""
BestTokens = Callable[[Sequence[int]], Mapping[int, float]]
"""A text -> the log-probabilities of the target's likeliest next tokens."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an output differs from that of no speculation."""

    method: str
    workload: str
    id: str
    position: int
    """How many output tokens before it are the same."""
    expected: int | None
    """The token of no speculation; None where its output ends there."""
    found: int | None
    margin: float | None
    """Log-probability of the target's best token over the worse of the two; None where one of
    them is not among its likeliest."""
    near_tie: bool


def first_difference(expected: Sequence[int], output: Sequence[int]) -> int | None:
    """The first position at which two outputs differ; None where they are the same."""
    pairs = enumerate(zip_longest(expected, output))
    return next((position for position, (one, other) in pairs if one != other), None)


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
    for method, key, output in outputs:
        position = first_difference(expected[key], output)
        if position is None:
            continue
        one, other = (
            each[position] if position < len(each) else None for each in (expected[key], output)
        )
        name = (method, key, position, other)
        if name not in judged:
            best = best_tokens([*prompts[key], *expected[key][:position]])
            margin = _margin(best, one, other)
            near_tie = margin is not None and margin <= noise
            judged[name] = Difference(method, *key, position, one, other, margin, near_tie)
    return list(judged.values())


def _margin(best: Mapping[int, float], one: int | None, other: int | None) -> float | None:
    if one is None or other is None or one not in best or other not in best:
        return None
    return max(best.values()) - min(best[one], best[other])


@dataclass(frozen=True, slots=True)
class Timing:
    """The speed and latencies of one round."""

    tokens: int
    """Tokens that arrived before the first slot stayed empty."""
    seconds: float
    """Seconds until then."""
    first_s: tuple[float, ...]
    """Time to the first token, per request."""
    gap_s: tuple[float, ...]
    """Time between one piece and the next, as a reader sees them."""
    token_s: tuple[float, ...]
    """Seconds per output token after the first piece, per request."""


def timing(answers: Sequence[Answer]) -> Timing:
    """The speed of a round; its tail, in which slots stand empty, counts for latencies alone."""
    sent_last_s = max(answer.sent_s for answer in answers)
    ends = [answer.arrived_s[-1] for answer in answers if answer.arrived_s]
    later = [end for end in ends if end > sent_last_s]
    until_s = min(later, default=max(ends, default=0.0))
    tokens = sum(
        count
        for answer in answers
        for arrived_s, count in zip(answer.arrived_s, answer.counts, strict=True)
        if arrived_s <= until_s
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


def paired_ratio(
    rounds: Mapping[int, Timing], others: Mapping[int, Timing], name: str
) -> dict[str, Any]:
    """A method's throughput over another's in the rounds that both ran, under keys of a report.

    Beside it stand the range, which is the worst and the best round, and the 95% interval, from
    rounds drawn again with replacement. What cannot be told is None.
    """
    both = sorted(number for number in rounds if number in others)
    figures: dict[str, Any] = dict.fromkeys((name, f"{name}_range", f"{name}_interval"))
    if not both:
        return figures
    tables = [
        np.array([(each[number].tokens, each[number].seconds) for number in both], np.float64)
        for each in (rounds, others)
    ]
    by_round = _ratio(*tables)
    figures[name] = float(_ratio(*(table.sum(0) for table in tables)))
    figures[f"{name}_range"] = [float(by_round.min()), float(by_round.max())]
    if len(both) >= MIN_ROUNDS:
        # The same draws for both methods, so that a slow minute is slow for both.
        draws = np.random.default_rng(0).integers(len(both), size=(RESAMPLES, len(both)))
        resampled = _ratio(*(table[draws].sum(1) for table in tables))
        figures[f"{name}_interval"] = np.quantile(resampled, (0.025, 0.975)).tolist()
    return figures


def _ratio(table: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ratio of tokens per second, from rows of (tokens, seconds); NaN where no time passed."""
    one_per_s, other_per_s = (
        each[..., 0] / np.where(each[..., 1] > 0, each[..., 1], np.nan) for each in (table, other)
    )
    return np.asarray(one_per_s / other_per_s, np.float64)
