"""The opponents: static rules, one setting for every request, step and load; and what adapts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.trace.schema import CONFIDENCES


@dataclass(frozen=True, slots=True)
class Needs:
    """What a policy asks of an engine or a trace, as far as the policy says."""

    drafter: bool = False
    """Whether it is nothing without a neural drafter."""
    neural_len: int = 0
    """The longest neural draft that it asks for; 0 for none, and where that is not known."""
    draft_len: int | None = None
    """The longest draft of all; None where that is not known."""


NEVER = 1_000_000
"""A minimum match length that no match reaches."""
LONGEST_BUDGET = 8


@dataclass(frozen=True, slots=True)
class StaticRule:
    """n-gram if the match is long, else neural with n-gram spliced on; every static setting is one.

    Where the match is at least `min_match` long, `ngram_len` tokens are copied; elsewhere
    `neural_len` tokens are drafted, and where the match behind them is at least `splice_min_match`
    long, `splice_len` copied tokens follow. With `always_drafts`, the drafter runs where all copy,
    too.
    """

    min_match: int = NEVER
    ngram_len: int = 0
    neural_len: int = 0
    splice_min_match: int = NEVER
    splice_len: int = 0
    always_drafts: bool = False

    @property
    def longest_draft(self) -> int:
        """The longest draft: so many tokens a row are verified where lengths are not known."""
        return max(self.ngram_len, self.neural_len + self.splice_len)

    def lengths(
        self,
        cap: int,
        holds: Any,
        match_length: Any,
        available: Any,
        splice_match_length: Any,
        splice_available: Any,
    ) -> tuple[Any, Any]:
        """Per row, how many neural tokens are drafted, and how many are copied behind them.

        All are arrays with an entry per row, or tensors: whether it holds the drafter, its match
        and what could be copied, and the same behind `neural_len` drafted tokens. No draft is
        longer than `cap`.
        """
        longest = min(self.neural_len, cap)
        copies = match_length >= (self.min_match if self.ngram_len > 0 else NEVER)
        drafts = holds & ~copies
        splices = drafts & (splice_match_length >= (self.splice_min_match if longest else NEVER))
        copied = copies * available.clip(max=min(self.ngram_len, cap))
        spliced = splices * splice_available.clip(max=min(self.splice_len, cap - longest))
        return drafts * longest, copied + spliced


def ranking(confidences: NDArray[np.float32]) -> NDArray[np.float32]:
    """One number per drafted token that grows with confidence: top-1 log-odds, else margin."""
    logprob = confidences[..., CONFIDENCES.index("logprob")].astype(np.float64)
    margin = confidences[..., CONFIDENCES.index("margin")].astype(np.float64)
    p = np.clip(np.exp(logprob), 1e-6, 1 - 1e-6)
    return np.where(np.isnan(logprob), margin, np.log(p) - np.log1p(-p)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """A `StaticRule` by the name of its spec."""

    name: str
    rule: StaticRule

    @property
    def needs(self) -> Needs:
        """The drafter where the rule drafts with it."""
        rule = self.rule
        return Needs(rule.neural_len > 0, rule.neural_len, max(1, rule.longest_draft))


@dataclass(frozen=True, slots=True)
class Budgeted:
    """As in vLLM: K tokens are drafted for every row, and the likeliest of all verified."""

    name: str
    draft_len: int

    @property
    def needs(self) -> Needs:
        """The drafter, for as many tokens as it drafts."""
        return Needs(drafter=True, neural_len=self.draft_len)


@dataclass(frozen=True, slots=True)
class Online:
    """As in a branch of vLLM: at most K tokens are copied in every row, and the likeliest verified.

    How likely they are is learned online, by source, length of the match and position.
    """

    name: str
    draft_len: int
