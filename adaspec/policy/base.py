"""What a policy needs, and what it does to decide."""

from __future__ import annotations

from dataclasses import dataclass

from adaspec.cost.model import Costs, Deciding
from adaspec.policy.protocol import Setup


@dataclass(frozen=True, slots=True)
class Needs:
    """What a policy asks of an engine or a trace, as far as the policy says."""

    drafter: bool = False
    """Whether it is nothing without a neural drafter."""
    neural_len: int = 0
    """The longest neural draft that it asks for; 0 for none, and where that is not known."""
    draft_len: int | None = None
    """The longest draft of all; None where that is not known."""
    tokens: bool = False
    """Whether it reads drafted tokens, which a trace may lack."""
    probabilities: bool = False
    """Whether it reads the probabilities of drafted tokens, likewise."""
    memory: bool = False
    """Whether it copies from the answers of earlier requests as well."""


def needs_of(policy: object) -> Needs:
    """What a policy says that it needs; one that says nothing needs nothing."""
    needs = getattr(policy, "needs", None)
    return needs if isinstance(needs, Needs) else Needs()


def deciding_of(policy: object, shows_tokens: bool) -> Deciding:
    """What a policy does to decide; one that does not say reads whatever drafts there are."""
    deciding = getattr(policy, "deciding", None)
    if not isinstance(deciding, Deciding):
        deciding = Deciding.REVISION
    return Deciding.PLAN if deciding is Deciding.REVISION and not shows_tokens else deciding


def costs_of(policy: object, setup: Setup) -> Costs:
    """What steps cost in the engine of this setup, with what is charged to the policy."""
    cost = setup.cost.under(setup.engine)
    return cost.charged_to(deciding_of(policy, setup.shows_tokens)).constants()
