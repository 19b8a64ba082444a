"""Static rules: one setting for every request, step and load. The opponents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Deciding
from adaspec.jit import compiled
from adaspec.policy.base import BasePolicy, Needs
from adaspec.policy.protocol import Batch, Drafts, Proposal, Setup
from adaspec.trace.schema import CONFIDENCES

NEVER = 1_000_000
"""A minimum match length that no match reaches."""


ROW = (
    "min_match",
    "ngram_len",
    "neural_len",
    "splice_match",
    "splice_len",
    "agree",
    "least_percent",
)
"""The fields of a rule that compiled code takes, in their order."""
NEURAL_LEN = ROW.index("neural_len")


@dataclass(frozen=True, slots=True)
class StaticRule:
    """n-gram if the match is long, else neural with n-gram spliced on; every static setting is one.

    Where the match is at least `min_match` long, `ngram_len` tokens are copied; elsewhere
    `neural_len` tokens are drafted, and where the match behind them is at least `splice_match`
    long, `splice_len` copied tokens follow. With `agree`, copying also needs the first drafted
    neural token to be the candidate's. With `least_percent`, a row drafts on only while the last
    drafted token's probability is so many percent or more. `vllm_match` = (min, max) takes n-gram
    drafts from vLLM's own look-up instead of the default one. With `memory`, matches in earlier
    answers count as well.
    """

    min_match: int = NEVER
    ngram_len: int = 0
    neural_len: int = 0
    splice_match: int = NEVER
    splice_len: int = 0
    agree: bool = False
    least_percent: int = 0
    vllm_match: tuple[int, int] | None = None
    memory: bool = False

    @property
    def longest_draft(self) -> int:
        """The longest draft: so many tokens a row are verified where lengths are not known."""
        return max(self.ngram_len, self.neural_len + self.splice_len)

    @property
    def deciding(self) -> Deciding:
        """Where it copies, it has to look up; where lengths follow probabilities, to read them."""
        if self.least_percent > 0:
            return Deciding.THRESHOLD
        copies = self.ngram_len > 0 or self.splice_len > 0
        return Deciding.LOOKUP if copies else Deciding.NOTHING

    @property
    def needs(self) -> Needs:
        """The drafter where it drafts with it, and drafted tokens where it compares them."""
        return Needs(
            drafter=self.neural_len > 0,
            neural_len=self.neural_len,
            draft_len=max(1, self.longest_draft),
            tokens=self.agree,
            probabilities=self.least_percent > 0,
            memory=self.memory,
        )

    def row(self) -> NDArray[np.int64]:
        """`ROW` for compiled code; which look-up it copies from is the caller's."""
        return np.array([int(getattr(self, name)) for name in ROW], dtype=np.int64)


def ranking(confidences: NDArray[np.float32]) -> NDArray[np.float64]:
    """One number per drafted token that grows with confidence: top-1 log-odds, else margin."""
    logprob = confidences[..., CONFIDENCES.index("logprob")].astype(np.float64)
    margin = confidences[..., CONFIDENCES.index("margin")].astype(np.float64)
    p = np.clip(np.exp(logprob), 1e-6, 1 - 1e-6)
    ranked = np.where(np.isnan(logprob), margin, np.log(p) - np.log1p(-p))
    # Rounded as the replay stores it, so that compiled and interpreted runs cannot part ways.
    return ranked.astype(np.float32).astype(np.float64)


@compiled
def least_log_odds(percent: int) -> float:
    """The log-odds of a probability in percent; below all others for 0."""
    return np.log(percent / (100 - percent)) if percent > 0 else -np.inf


class StaticPolicy(BasePolicy):
    """A `StaticRule` behind the `Policy` protocol."""

    def __init__(self, name: str, rule: StaticRule) -> None:
        self.name = name
        self.rule = rule
        # Drafted tokens may send every row to its copy, or every row's last be unlikely.
        self.stops_early = rule.agree or rule.least_percent > 0
        self._neural_len = rule.neural_len

    @property
    def needs(self) -> Needs:
        """The rule's."""
        return self.rule.needs

    @property
    def deciding(self) -> Deciding:
        """The rule's."""
        return self.rule.deciding

    def start(self, setup: Setup) -> None:
        """Nothing is remembered between steps; a draft longer than the cap is cut to it."""
        self._neural_len = min(self.rule.neural_len, setup.cap)

    def holds_drafter(self, load: int) -> bool:
        """A rule without neural tokens holds no drafter and pays no keep-alive."""
        return self.rule.neural_len > 0

    def forwards(self, batch: Batch) -> int:
        """Forwards for the rows that draft, as long as one of them wants another."""
        drafts = batch.drafts
        drafting = batch.holds_neural
        if drafts.count == 0:
            if not self.rule.agree:
                drafting = drafting & ~self._copies(batch)
            return self._neural_len if drafting.any() else 0
        drafting = drafting & ~self._takes_copy(batch)
        if self.rule.least_percent:
            drafting = drafting & (self._lengths(drafts, drafts.count + 1) > drafts.count)
        return self._neural_len if drafting.any() else 0

    def decide(self, batch: Batch) -> Proposal:
        """The rule, row by row."""
        rule, drafts = self.rule, batch.drafts
        start = None
        if rule.vllm_match is not None:
            start, length = batch.context.vllm_match(*rule.vllm_match)
            copies = length > 0
        else:
            copies = self._takes_copy(batch)
        # An engine's drafter may stop short of what was planned.
        drafted = self._lengths(drafts, min(self._neural_len, drafts.count))
        neural_len = np.where(batch.holds_neural & ~copies, drafted, 0).astype(np.int32)
        ngram_len = np.where(copies, rule.ngram_len, 0).astype(np.int32)
        if rule.neural_len > 0 and rule.splice_len > 0:
            behind = drafts.behind(neural_len)
            splices = batch.holds_neural & ~copies & (behind.length >= rule.splice_match)
            ngram_len[splices] = rule.splice_len
        return Proposal(neural_len, ngram_len, start)

    def _copies(self, batch: Batch) -> NDArray[np.bool_]:
        return batch.matches.length >= self.rule.min_match

    def _takes_copy(self, batch: Batch) -> NDArray[np.bool_]:
        """The rows that copy rather than draft, as far as the first drafted token tells."""
        drafts = batch.drafts
        if not self.rule.agree:
            return self._copies(batch)
        if drafts.count == 0:
            return np.zeros(len(batch), np.bool_)
        return self._copies(batch) & (batch.context.candidate(1)[:, 0] == drafts.tokens[:, 0])

    def _lengths(self, drafts: Drafts, most: int) -> int | NDArray[np.int_]:
        """Every row's draft: up to its first unlikely token, and `most` tokens at most."""
        if not self.rule.least_percent:
            return most
        likely = ranking(drafts.confidences[:, : drafts.count]) >= least_log_odds(
            self.rule.least_percent
        )
        return np.minimum(1 + np.cumprod(likely, axis=1).sum(axis=1), most)
