"""The replay of any policy, with the guard of servers over it and costs that it does not know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Deciding, StepShape
from adaspec.policy.base import deciding_of
from adaspec.policy.guard import HOLD, Guard, Said
from adaspec.policy.protocol import Policy
from adaspec.replay.closed_loop import context_tokens
from adaspec.replay.loop import Run
from adaspec.replay.recording import Recording


class GuardedRun(Run):
    """One run in which a guard sees what steps take and emit, and says which of them speculate.

    Steps take what `true_cost` says; the policy weighs the run's cost all the same. Without a
    guard all of them speculate.
    """

    held_off = False
    """Whether the last step was held off: the policy knows nothing of the running requests."""

    def __init__(
        self,
        recording: Recording,
        policy: Policy,
        order: NDArray[np.int32],
        concurrency: int,
        cost: CostModel,
        cap: int,
        guard: Guard | None,
        true_cost: CostModel,
    ) -> None:
        super().__init__(recording, policy, order, concurrency, cost, cap)
        deciding = deciding_of(policy, recording.shows_tokens)
        self.costs = true_cost.charged_to(deciding).constants()
        self.plain_costs = true_cost.charged_to(Deciding.NOTHING).constants()
        self.guard = guard
        self._noted_s = 0.0
        """Until when the guard was told of."""

    def step(self) -> None:
        """Take all running requests one step on, as the guard says."""
        guard, loop = self.guard, self.loop
        if guard is None:
            super().step()
            return
        rows, tokens_before = len(loop.slot), float(loop.totals["tokens"][0])
        prompt_tokens = int(loop.state["prompt_tokens"][0])
        said = guard.decide(rows, int(context_tokens(loop)), prompt_tokens)
        if said.speculates:
            if self.held_off:
                self._readmit()
            super().step()
        else:
            self._go_without(said)
        now_s, tokens = float(loop.totals["time_s"][0]), float(loop.totals["tokens"][0])
        guard.note(said, now_s - self._noted_s, round(tokens - tokens_before), rows)
        self._noted_s = now_s

    def gets_drafter(self, slot: int) -> bool:
        """None enters while the policy is held off."""
        return not self.held_off and super().gets_drafter(slot)

    def _readmit(self) -> None:
        """Let the policy know of requests again that ran while it was held off."""
        self.held_off = False
        slots = self.loop.slot.tolist()
        for slot in slots:  # none holds the drafter: it has not read what they emitted
            self.executor.enter(slot, len(slots))

    def _go_without(self, said: Said) -> None:
        """Take all running requests one token on, as an engine without speculation does."""
        rows = len(self.loop.slot)
        if said.word == HOLD and not self.held_off:
            self.held_off, self.loop.holds_neural[:] = True, False
        nothing = np.zeros(rows, np.int32)
        shape = StepShape(rows, int(context_tokens(self.loop)), 0, 0, False, 0, 0, 0)
        self.finish(shape, self.plain_costs, self.verify(nothing, nothing, nothing))
