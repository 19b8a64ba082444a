"""What steps without drafts take, for whoever asks in every step of an engine."""

from __future__ import annotations

from collections.abc import Callable

from adaspec.cost.model import CostModel, StepShape, verify_s


def plain_seconds(cost: CostModel) -> Callable[[int, int, int], float]:
    """The seconds of a step of so many rows and context tokens that reads so many prompt tokens."""
    costs = cost.constants()

    def seconds(rows: int, context_tokens: int, prompt_tokens: int) -> float:
        shape = StepShape(rows, context_tokens, prompt_tokens=prompt_tokens)
        return float(verify_s(costs, StepShape(*shape)))

    seconds(1, 1, 1)  # compiled now, and not when the first request waits
    return seconds
