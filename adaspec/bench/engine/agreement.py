"""Whether all methods said the same: greedy outputs, token by token, near-ties told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NOISE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""By how much (in log-probability) the arithmetic of a type may move two tokens against each other
when other requests share the step: some twenty units in the last place of a logit about 20."""

Key = tuple[str, str]
BestTokens = Callable[[Sequence[int]], Mapping[int, float]]


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

    def document(self) -> dict[str, Any]:
        """In JSON's own types."""
        return asdict(self)

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


def compare(
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
