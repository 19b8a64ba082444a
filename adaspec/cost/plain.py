"""What steps without drafts take, for whoever asks in every step of an engine."""

from __future__ import annotations

from collections.abc import Callable

from adaspec.cost.model import CostModel, plain_step_s


def plain_seconds(cost: CostModel) -> Callable[[int, int], float]:
    """The seconds of a step of so many rows and context tokens."""
    costs = cost.constants()
    plain_step_s(costs, 1, 1)  # compiled now, and not when the first request waits
    return lambda rows, context_tokens: float(plain_step_s(costs, rows, context_tokens))
