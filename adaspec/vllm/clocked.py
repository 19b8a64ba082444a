"""What steps took by the scheduler's clock, joined with what ran in them here.

The scheduler times every step and numbers it, and tells all ranks with a later step (see
`guarding`). A rank knows what it ran in the step of that number. So all ranks learn the same from
the same seconds, and none reads a clock of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from adaspec.cost.model import StepShape
from adaspec.cost.refit import CostRefit
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Policy
from adaspec.vllm.events import SOURCES
from adaspec.vllm.guarding import Guarded

log = logging.getLogger("vllm.adaspec")

_MOST_WAITING = 32
_FAR = 2.0
"""A factor that far from that of a whole step is worth a line in the log."""
DRIFT = 0.7
"""Where less of what is expected of a source comes, its model is taken for outdated."""


class ClockedSteps:
    """The last steps that ran here, until it is known what they took."""

    def __init__(self, learner: Any, refit: CostRefit, came: Callable[[], list[float]]) -> None:
        """`learner.timed(shape, seconds)` is told of each; `refit` is what comes of that.

        `came` says which share of what the policy expected of each source came.
        """
        self._learner, self.refit, self.came = learner, refit, came
        self._number = 0
        self._shapes: dict[int, StepShape] = {}
        self._logged = False
        self._drifted: set[str] = set()

    def follow(self, guarded: Guarded) -> bool:
        """Take in what came with the step that begins; whether costs have changed."""
        self._number, before = guarded.number, self.refit.factors
        for number, seconds in guarded.took:
            shape = self._shapes.pop(number, None)
            if shape is not None:
                self._learner.timed(shape, seconds)
        return self.refit.factors is not before

    def ran(self, shape: StepShape) -> None:
        """The present step is of this shape."""
        self._shapes[self._number] = shape
        if len(self._shapes) > _MOST_WAITING:  # of steps that the scheduler does not tell of
            del self._shapes[next(iter(self._shapes))]

    def log_drift(self) -> None:
        """Say so where much less comes of a source's drafts than is expected, once each."""
        for source, share in zip(SOURCES[1:], self.came(), strict=True):
            if share < DRIFT and source not in self._drifted:
                self._drifted.add(source)
                log.warning(
                    "adaspec: of the tokens that the policy lately expected of %s drafts, %.0f%% "
                    "were accepted: traffic or drafter are not as in training, train it again; "
                    "plans expect that much less meanwhile",
                    source,
                    100 * share,
                )

    def log_costs(self) -> None:
        """Say so where costs are far from those that were given, once."""
        step, token, forward = self.refit.factors.tolist()
        if self._logged or max(token / step, step / token, forward / step, step / forward) < _FAR:
            return
        self._logged = True
        log.info(
            "adaspec: against a whole step, a verified token takes %.1f times what the cost model "
            "says here, and a forward of the drafter %.1f times; plans follow what was measured",
            token / step,
            forward / step,
        )


def clocked_steps(learner: Any, policy: Policy) -> ClockedSteps | None:
    """What joins the steps of a started policy with their times; None if it does not refit."""
    if not isinstance(policy, LearnedPolicy) or policy.refit is None:
        return None
    return ClockedSteps(learner, policy.refit, policy.came)
