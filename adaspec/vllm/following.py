"""Takes a session, or a worker of V2, over to what the scheduler says of the step that begins."""

from __future__ import annotations

from typing import Any

from adaspec.vllm.events import Fault
from adaspec.vllm.guarding import Guarded, word_of
from adaspec.vllm.mode_file import Told


def follow(serves: Any, told: Told | None, guarded: Guarded | None) -> None:
    """Take a session, or a worker of V2, over to the mode of the step that begins next."""
    serves.word = word_of(guarded)
    serves.drift.step()
    if guarded is not None:
        serves.observers.notify("guarded", guarded)
        _note_problem(serves, "guard", guarded.problem)
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
