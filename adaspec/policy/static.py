"""Static rules: one setting for every request, step and load. The opponents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.base import Needs
from adaspec.trace.schema import CONFIDENCES

NEVER = 1_000_000
"""A minimum match length that no match reaches."""


RULE_FIELDS = (
    "min_match",
    "ngram_len",
    "neural_len",
    "splice_min_match",
    "splice_len",
    "needs_matching_draft",
    "least_percent",
)
"""The fields of a rule that compiled code takes, in their order."""
NEURAL_LEN = RULE_FIELDS.index("neural_len")


@dataclass(frozen=True, slots=True)
class StaticRule:
    """n-gram if the match is long, else neural with n-gram spliced on; every static setting is one.

    Where the match is at least `min_match` long, `ngram_len` tokens are copied; elsewhere
    `neural_len` tokens are drafted, and where the match behind them is at least `splice_min_match`
    long, `splice_len` copied tokens follow. With `needs_matching_draft`, copying also needs the
    first drafted neural token to be the candidate's. With `least_percent`, a row drafts on only
    while the last drafted token's probability is so many percent or more. `vllm_match` = (min, max)
    takes n-gram drafts from vLLM's own look-up instead of the default one. With `memory`, matches
    in earlier answers count as well.
    """

    min_match: int = NEVER
    ngram_len: int = 0
    neural_len: int = 0
    splice_min_match: int = NEVER
    splice_len: int = 0
    needs_matching_draft: bool = False
    least_percent: int = 0
    vllm_match: tuple[int, int] | None = None
    memory: bool = False

    @property
    def longest_draft(self) -> int:
        """The longest draft: so many tokens a row are verified where lengths are not known."""
        return max(self.ngram_len, self.neural_len + self.splice_len)

    @property
    def needs(self) -> Needs:
        """The drafter where it drafts with it, and drafted tokens where it compares them."""
        return Needs(
            drafter=self.neural_len > 0,
            neural_len=self.neural_len,
            draft_len=max(1, self.longest_draft),
            tokens=self.needs_matching_draft,
            probabilities=self.least_percent > 0,
            memory=self.memory,
        )

    def packed(self) -> NDArray[np.int64]:
        """`RULE_FIELDS` for compiled code; which look-up it copies from is the caller's."""
        return np.array([int(getattr(self, name)) for name in RULE_FIELDS], dtype=np.int64)


def ranking(confidences: NDArray[np.float32]) -> NDArray[np.float32]:
    """One number per drafted token that grows with confidence: top-1 log-odds, else margin."""
    logprob = confidences[..., CONFIDENCES.index("logprob")].astype(np.float64)
    margin = confidences[..., CONFIDENCES.index("margin")].astype(np.float64)
    p = np.clip(np.exp(logprob), 1e-6, 1 - 1e-6)
    return np.where(np.isnan(logprob), margin, np.log(p) - np.log1p(-p)).astype(np.float32)


@compiled
def least_log_odds(percent: int) -> float:
    """The log-odds of a probability in percent; below all others for 0."""
    return np.log(percent / (100 - percent)) if percent > 0 else -np.inf


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """A `StaticRule` by the name of its spec."""

    name: str
    rule: StaticRule

    @property
    def needs(self) -> Needs:
        """The rule's."""
        return self.rule.needs
