"""Takes a session, or a worker of V2, over to what the scheduler says of the step that begins."""

from __future__ import annotations

from typing import Any

from adaspec.vllm import guarding, mode_file
from adaspec.vllm.events import Fault
from adaspec.vllm.guarding import Guarded
from adaspec.vllm.mode_file import Told


def follow(serves: Any, scheduled: Any) -> None:
    """Take a session, or a worker of V2, over to what a scheduled step says."""
    told: Told | None = getattr(scheduled, mode_file.ATTRIBUTE, None)
    guarded: Guarded | None = getattr(scheduled, guarding.ATTRIBUTE, None)
    serves.word = guarding.word_of(guarded)
    serves.drift.step()
    if guarded is not None:
        serves.observers.notify("guarded", guarded)
    if told is not None and told.mode != serves.mode:
        serves.mode = told.mode
        serves.observers.notify("switched", told.mode)
    for stage, said in (("guard", guarded), ("mode_file", told)):
        if said is not None and said.problem:  # it failed outside of the session, and was logged
            serves.observers.notify("fault", Fault(stage, serves.breaker.off))
