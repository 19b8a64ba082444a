"""Takes a session over to what the scheduler says of the step that begins."""

from __future__ import annotations

from typing import Any

from adaspec.vllm import guarding, mode_file
from adaspec.vllm.events import Fault
from adaspec.vllm.guarding import Guarded
from adaspec.vllm.mode_file import Told


def follow(session: Any, scheduled: Any) -> None:
    """Take a session over to what a scheduled step says."""
    told: Told | None = getattr(scheduled, mode_file.ATTRIBUTE, None)
    guarded: Guarded | None = getattr(scheduled, guarding.ATTRIBUTE, None)
    session.guard_state = guarding.state_of(guarded)
    session.drift.step()
    if guarded is not None:
        session.observers.notify("guarded", guarded)
    if told is not None and told.mode != session.mode:
        session.mode = told.mode
        session.observers.notify("switched", told.mode)
    for stage, said in (("guard", guarded), ("mode_file", told)):
        if said is not None and said.problem:  # it failed outside of the session, and was logged
            session.observers.notify("fault", Fault(stage, session.breaker.off))
