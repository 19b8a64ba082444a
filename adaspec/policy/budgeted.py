"""`budget:K`, as in vLLM: K tokens are drafted for every row, and the likeliest of all verified."""

from __future__ import annotations

from dataclasses import dataclass

from adaspec.policy.static import Needs

LONGEST_BUDGET = 8


@dataclass(frozen=True, slots=True)
class Budgeted:
    """The rival by the name of its spec."""

    name: str
    draft_len: int

    @property
    def needs(self) -> Needs:
        """The drafter, for as many tokens as it drafts."""
        return Needs(drafter=True, neural_len=self.draft_len)
