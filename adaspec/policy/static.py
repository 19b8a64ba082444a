"""The opponents: static rules and what adapts; and the specs that name them, of `KINDS`.

A rule has one setting for every request, step and load. What only replays know (oracles, suffix
decoding) has specs of its own in `replay/contender.py`. What a policy needs of an engine or a trace
it says itself (`Needs`). How a kind is replayed, says `adaspec/replay/player.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import GONE, SpecError, nearest
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


Baseline: TypeAlias = StaticPolicy | Budgeted | Online

_LONGEST = 1000
_LONGEST_SPEC = 1000
_NUMBER = "[0-9]{1,9}"
"""Python refuses to read numbers of thousands of digits, and nothing here needs so many."""


@dataclass(frozen=True, slots=True)
class Field:
    """One whole number of a spec."""

    name: str
    default: int
    low: int
    high: int = _LONGEST


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of spec: its fields, which are whole numbers, in order, and what they make."""

    head: str
    """What the spec begins with."""
    fields: tuple[Field, ...]
    build: Callable[..., Any]
    """The fields' values -> the rule, or what else the policy is made of."""
    policy: Callable[[str, Any], Baseline] = StaticPolicy
    """(the spec, what was built) -> the policy."""

    @property
    def usage(self) -> str:
        """The spec with its fields' names."""
        return ":".join([self.head, *(field.name for field in self.fields)])

    def parse(self, text: str, words: list[str]) -> Baseline:
        """The policy, named by the text, of the words behind the head."""
        known = len(self.fields)
        if len(words) > known:
            raise _malformed(text, self.head, f"{len(words)} values, at most {known} are known")
        values = [field.default for field in self.fields]
        for i, (word, field) in enumerate(zip(words, self.fields, strict=False)):
            limits = f"{field.low}..{field.high}"
            if not re.fullmatch(_NUMBER, word):
                why = f"{field.name} is '{word}', not a whole number in {limits}"
                raise _malformed(text, self.head, why)
            values[i] = int(word)
            if not field.low <= values[i] <= field.high:
                raise _malformed(text, self.head, f"{field.name}={word} is outside {limits}")
        return self.policy(text, self.build(*values))


def rule_spec(head: str, *values: int) -> str:
    """The spec of one of `KINDS` with these values."""
    return ":".join([head, *map(str, values)])


_M = Field("M", 4, 1, NEVER)
_KN = Field("KN", 20, 1)
_KE = Field("KE", 2, 1)
_MX = Field("MX", 2, 1, NEVER)
_KX = Field("KX", 5, 1)

KINDS = {
    form.head: form
    for form in (
        # No speculation.
        Form("none", (), StaticRule),
        # K n-gram tokens where the match is at least MIN long.
        Form(
            "fixed:ngram",
            (Field("K", 8, 1), Field("MIN", 3, 1, 32)),
            lambda k, low: StaticRule(min_match=low, ngram_len=k),
        ),
        # K neural tokens, always.
        Form("fixed:neural", (Field("K", 3, 1),), lambda k: StaticRule(neural_len=k)),
        # KN n-gram tokens where the match is at least M long, else KE neural tokens.
        Form("hybrid", (_M, Field("KN", 16, 1), Field("KE", 3, 0)), StaticRule),
        # hybrid, and behind the neural tokens KX n-gram tokens where the match is MX long.
        Form("hybrid-splice", (_M, _KN, _KE, _MX, _KX), StaticRule),
        # TensorRT-LLM's: a match of 4 or more replaces K neural tokens, which are drafted anyway.
        Form("trtllm", (Field("K", 3, 1),), lambda k: StaticRule(4, k, k, always_drafts=True)),
        # vLLM's: K neural tokens for every row, of which the likeliest of all rows are verified.
        Form("budget", (Field("K", 5, 1, LONGEST_BUDGET),), int, Budgeted),
        # A branch of vLLM's: copies, verified so by what was accepted of their kind of late.
        Form("online", (Field("K", 8, 1),), int, Online),
    )
}
FIRST_WORDS = frozenset(head.partition(":")[0] for head in KINDS)
"""What specs begin with, up to the first colon."""


def parse_policy(text: str) -> Baseline:
    """The policy that a spec names; its name is the spec as given."""
    check_legible(text)
    words = text.strip().split(":")
    count = 2 if words[0] == "fixed" else 1
    head = ":".join(words[:count])
    if head in KINDS:
        return KINDS[head].parse(text, words[count:])
    if head in GONE:
        raise SpecError(f"policy spec '{text}'{nearest(head, KINDS)}")
    guess = nearest(":".join(words[:2]), KINDS) or nearest(head, KINDS) or "."
    usages = ", ".join(kind.usage for kind in KINDS.values())
    raise SpecError(
        f"unknown policy spec '{text}'{guess} Known: {usages}; a trained policy goes by its folder "
        "('./NAME') or its shipped name"
    )


def check_legible(text: str) -> None:
    """Refuse what no error could quote in one line."""
    if len(text) > _LONGEST_SPEC or not text.isprintable():
        raise SpecError(
            f"malformed policy spec {text[:40]!r}..: at most {_LONGEST_SPEC} printable characters "
            "make a spec"
        )


def _malformed(text: str, head: str, why: str) -> SpecError:
    return SpecError(f"malformed policy spec '{text}': {why}. Write {KINDS[head].usage}")
