"""Replaces a few plans by chance, so that a log also shows what the policy would not have chosen.

In each step each request explores with probability epsilon: its plan is replaced by one of those
below that it could take, all alike likely. A hash of the request's id and the step's number
decides, so that all ranks agree and a policy's own chance is left alone.

    nothing    no draft
    neural     `EXPLORED_NEURAL` neural tokens, where the request holds the drafter and it can run
    copy       all that the most recent match gives, up to the cap, where there is a match

Outputs stay as they are, since the target verifies every draft. A neural draft takes forwards of
the drafter for the whole batch, which is most of what exploring costs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.protocol import Bools, Ints, Outcome, Setup
from adaspec.step.cut import Cut
from adaspec.step.executor import Step

EXPLORED_NEURAL = 5
_OWN, _NOTHING, _NEURAL, _COPY = range(4)


@dataclass(slots=True)
class Exploration:
    """What chance has decided for the rows of one step."""

    epsilon: float
    may: Bools
    """(rows, plans) the plans that may replace a row's own; none in rows that never explore."""
    plan: Ints
    """Each row's plan; `_OWN` where nothing is replaced."""
    lengths: Ints
    """(rows, plans, 2) neural and copied tokens of each; the policy's own follow in `carry_out`."""
    propensity: NDArray[np.float64]
    """The probability of what each row takes, known after `carry_out`."""
    reach: NDArray[np.float64]
    """(rows, tokens) that of at least 1, 2, .. neural tokens, likewise."""

    @property
    def forwards(self) -> int:
        """How many forwards the replaced plans need."""
        explores = self.plan == _NEURAL
        return int(self.lengths[explores, _NEURAL, 0].max(initial=0))

    def carry_out(self, cut: Cut, step: Step, drafted: int) -> None:
        """Replace plans in `cut`; so many forwards have run."""
        rows, lengths = np.arange(len(self.plan)), self.lengths
        lengths[:, _OWN] = np.stack([cut.neural_len, cut.ngram_len], axis=1)
        explores = self.plan != _OWN
        taken = lengths[rows, self.plan]
        cut.neural_len[explores] = np.minimum(taken[explores, 0], drafted)
        cut.ngram_len[explores] = taken[explores, 1]
        copies = self.plan == _COPY
        cut.start[copies] = step.start[copies]
        explored = self.epsilon * self.may / np.maximum(self.may.sum(axis=1, keepdims=True), 1)
        chance = explored.astype(np.float64)
        chance[:, _OWN] = 1 - chance.sum(axis=1)
        same = (lengths == taken[:, None]).all(axis=2)
        self.propensity = (chance * same).sum(axis=1)
        counts = np.arange(1, int(lengths[:, :, 0].max(initial=0)) + 1)
        reached = lengths[:, :, 0, None] >= counts
        self.reach = (chance[:, :, None] * reached).sum(axis=1)


def explore(
    number: int,
    requests: list[str],
    step: Step,
    setup: Setup,
    epsilon: float,
    room: Ints | None,
    copies: Bools | None,
    recorded: Bools,
    can_draft: bool,
) -> Exploration:
    """Decide by chance whose plans are replaced in the step of this number, and by what."""
    rows = len(requests)
    most = np.full(rows, setup.cap, np.int32) if room is None else np.minimum(room, setup.cap)
    most = np.maximum(most, 0)
    lengths = np.zeros((rows, 4, 2), np.int32)
    neural = min(EXPLORED_NEURAL, setup.neural_cap) if can_draft else 0
    lengths[:, _NEURAL, 0] = np.where(step.holds_neural, np.minimum(neural, most), 0)
    copied = np.minimum(step.available, most)
    lengths[:, _COPY, 1] = copied if copies is None else np.where(copies, copied, 0)
    may = lengths.sum(axis=2) > 0
    may[:, _NOTHING] = (most > 0) & ~recorded
    may &= may[:, _NOTHING, None]
    plan = np.zeros(rows, np.int32)
    for row, request in enumerate(requests):
        drawn = _drawn(request, number)
        if drawn < epsilon and may[row].any():
            plans = np.flatnonzero(may[row])
            plan[row] = plans[int(drawn / epsilon * len(plans))]
    none = np.zeros(0)
    return Exploration(epsilon, may, plan, lengths, none, none)


def own_of(outcome: Outcome, exploration: Exploration | None) -> Outcome:
    """What a policy learns of a step: of a plan that was replaced, only the text that came."""
    if exploration is None or not exploration.plan.any():
        return outcome
    own = exploration.plan == _OWN
    judged = own if outcome.judged is None else outcome.judged & own
    drafted, neural, accepted = (
        np.where(own, each, 0).astype(np.int32)
        for each in (outcome.drafted, outcome.neural_drafted, outcome.accepted)
    )
    return replace(
        outcome, drafted=drafted, neural_drafted=neural, accepted=accepted, judged=judged
    )


def _drawn(request: str, number: int) -> float:
    """A number from 0 to 1 that nothing but the request and the step's number decides."""
    salt = number.to_bytes(8, "big")
    digest = hashlib.blake2b(request.encode(), digest_size=8, person=b"explore", salt=salt).digest()
    return int.from_bytes(digest, "big") / 2.0**64
