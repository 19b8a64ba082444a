"""What a policy needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Needs:
    """What a policy asks of an engine or a trace, as far as the policy says."""

    drafter: bool = False
    """Whether it is nothing without a neural drafter."""
    neural_len: int = 0
    """The longest neural draft that it asks for; 0 for none, and where that is not known."""
    draft_len: int | None = None
    """The longest draft of all; None where that is not known."""
