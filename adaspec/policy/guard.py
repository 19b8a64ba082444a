"""Whether the neural drafter earns its keep: requests that enter while it does not go without."""

from __future__ import annotations

from adaspec.jit import compiled
from adaspec.policy.desk import HELD, HOLDING, PATIENCE, RESTED, SPENT, WATCHED, WORTH, Desk

_MEMORY = 0.99
_ROW_MEMORY = 0.998
_FEWEST_STEPS = 30.0
_LONGEST_PROBE = 200.0
_LEAST_PATIENCE, _MOST_PATIENCE = 8.0, 64.0


@compiled
def watch(desk: Desk, worth: float, spent: float, rows: int, holders: int) -> None:
    """Keep the drafter's account: what it was worth, were every row to hold it, and what it took.

    One holder pays for a whole batch's keep-alive, so its worth alone would never bring the
    drafter back.
    """
    guard = desk.guard
    guard[HOLDING] = 1.0 if holders > 0 else 0.0
    if holders == 0:
        guard[RESTED] += 1.0
        return
    fade = max(_MEMORY, _ROW_MEMORY**rows)
    guard[WORTH] = guard[WORTH] * fade + worth * rows / holders
    guard[SPENT] = guard[SPENT] * fade + spent
    guard[WATCHED] = guard[WATCHED] * fade + 1.0
    guard[HELD] = min(guard[HELD] + 1.0, _LONGEST_PROBE)
    guard[RESTED] = 0.0


@compiled
def admits(desk: Desk) -> bool:
    """Whether a request that enters now shall hold the neural drafter: while it earns its keep.

    Once it does not, one request at a time still gets it, to notice when that changes: after a
    rest that is a multiple of the steps for which it was last held, doubled at every failure.
    """
    guard = desk.guard
    if guard[WATCHED] < _FEWEST_STEPS or guard[WORTH] >= guard[SPENT]:
        guard[PATIENCE] = _LEAST_PATIENCE
        return True
    if guard[HOLDING] > 0 or guard[RESTED] < guard[PATIENCE] * guard[HELD]:
        return False
    guard[PATIENCE] = min(2.0 * guard[PATIENCE], _MOST_PATIENCE)
    guard[HOLDING], guard[HELD] = 1.0, 0.0
    return True
