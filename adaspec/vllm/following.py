"""Takes a session, or a worker of V2, over to what the scheduler says of the step that begins."""

from __future__ import annotations

from typing import Any

from adaspec.vllm.clocked import ClockedSteps
from adaspec.vllm.events import Fault
from adaspec.vllm.guarding import Guarded, word_of
from adaspec.vllm.mode_file import Told


def follow(serves: Any, told: Told | None, guarded: Guarded | None) -> None:
    """Take a session, or a worker of V2, over to the mode of the step that begins next."""
    serves.word = word_of(guarded)
    if guarded is not None:
        serves.observers.notify("guarded", guarded)
        _note_problem(serves, "guard", guarded.problem)
        _learn_costs(serves, guarded)
    if told is None:
        return
    _note_problem(serves, "mode_file", told.problem)
    if told.mode != serves.mode:
        serves.mode = told.mode
        serves.observers.notify("switched", told.mode)


def _note_problem(serves: Any, stage: str, problem: str | None) -> None:
    """Tell observers of what failed outside of the session, and was logged there."""
    if problem:
        fault = Fault(serves.step, stage, problem, serves.breaker.off)
        serves.observers.notify("fault", fault)


def _learn_costs(serves: Any, guarded: Guarded) -> None:
    """Take in what steps took; if that fails, costs stay as they are."""
    clocked: ClockedSteps | None = serves.clocked
    if clocked is None:
        return
    try:
        if clocked.follow(guarded):
            clocked.log_costs()
            clocked.log_drift()
            serves.observers.notify("learned", clocked.refit.factors.tolist(), clocked.came())
    except Exception as error:
        serves.clocked = None
        serves.breaker.note(serves.step, "refit", error)
