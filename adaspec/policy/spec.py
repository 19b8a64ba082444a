"""The specs of policies, such as `hybrid-splice:4:20:2:2:5`, which are of one of these `KINDS`.

What only replays know (oracles, suffix decoding) has specs of its own in `replay/contender.py`.

A static rule is an entry of `FORMS`; a baseline is an entry of `KINDS` that says how it is parsed.
What a policy needs of an engine or a trace it says itself (`Needs`). How a kind is replayed, says
`adaspec/replay/player.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from adaspec.errors import SpecError, nearest
from adaspec.policy.adaptive import Adaptive, Rival
from adaspec.policy.static import NEVER, StaticPolicy, StaticRule

Baseline: TypeAlias = StaticPolicy | Adaptive

LONGEST_DRAFT = 1000
_LONGEST_SPEC = 1000
_NUMBER = "[0-9]{1,9}"
"""Python refuses to read numbers of thousands of digits, and nothing here needs so many."""


@dataclass(frozen=True, slots=True)
class Field:
    """One whole number of a spec."""

    name: str
    default: int
    low: int
    high: int = LONGEST_DRAFT


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of spec."""

    usage: str
    """The spec with its fields' names."""
    default: str
    """The spec that the bare head means."""
    parse: Callable[[str, list[str]], Baseline]
    """(the whole text, the words behind the head) -> the policy, named by the text."""


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of spec whose fields are whole numbers, in order, and what they make."""

    head: str
    """What the spec begins with."""
    fields: tuple[Field, ...]
    build: Callable[..., Any]
    """The fields' values -> the rule, or rival."""
    policy: Callable[[str, Any], Baseline] = StaticPolicy
    """(the spec, the rule) -> the policy."""

    @property
    def usage(self) -> str:
        """As of any kind."""
        return ":".join([self.head, *(field.name for field in self.fields)])

    @property
    def default(self) -> str:
        """As of any kind."""
        return rule_spec(self.head, *(field.default for field in self.fields))

    def parse(self, text: str, words: list[str]) -> Baseline:
        """As of any kind."""
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
        if self.head == "fixed:ngram-vllm" and values[1] > values[2]:
            raise _malformed(text, self.head, f"MIN={values[1]} exceeds MAX={values[2]}")
        return self.policy(text, self.build(*values))


def rule_spec(head: str, *values: int) -> str:
    """The spec of one of `FORMS` with these values."""
    return ":".join([head, *map(str, values)])


_M = Field("M", 4, 1, NEVER)
_KN = Field("KN", 20, 1)
_KE = Field("KE", 2, 1)
_MX = Field("MX", 2, 1, NEVER)
_KX = Field("KX", 5, 1)
_T = Field("T", 40, 1, 99)

FORMS = {
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
        # K n-gram tokens by vLLM's own look-up: match MIN to MAX long, earliest occurrence.
        Form(
            "fixed:ngram-vllm",
            (Field("K", 8, 1), Field("MIN", 3, 1, 32), Field("MAX", 7, 1, 32)),
            lambda k, low, high: StaticRule(low, k, vllm_match=(low, high)),
        ),
        # K neural tokens, always.
        Form("fixed:neural", (Field("K", 3, 1),), lambda k: StaticRule(neural_len=k)),
        # K neural tokens at most, no more behind the first whose probability is below T percent.
        Form(
            "fixed:neural-until",
            (Field("K", 5, 1), _T),
            lambda k, percent: StaticRule(neural_len=k, least_percent=percent),
        ),
        # KN n-gram tokens where the match is at least M long, else KE neural tokens.
        Form("hybrid", (_M, Field("KN", 16, 1), Field("KE", 3, 0)), StaticRule),
        # hybrid, and behind the neural tokens KX n-gram tokens where the match is MX long.
        Form("hybrid-splice", (_M, _KN, _KE, _MX, _KX), StaticRule),
        # hybrid-splice, with no neural tokens behind the first that is less likely than T percent.
        Form(
            "hybrid-until",
            (_M, _KN, replace(_KE, default=5), _T, _MX, _KX),
            lambda m, kn, ke, percent, mx, kx: StaticRule(m, kn, ke, mx, kx, least_percent=percent),
        ),
        # fixed:ngram and hybrid-splice, copying from the answers of earlier requests as well.
        Form(
            "fixed:memory",
            (Field("K", 8, 1), Field("MIN", 3, 1, 32)),
            lambda k, low: StaticRule(min_match=low, ngram_len=k, memory=True),
        ),
        Form("hybrid-memory", (_M, _KN, _KE, _MX, _KX), partial(StaticRule, memory=True)),
        # hybrid-splice, but n-gram only where the first drafted neural token agrees.
        Form(
            "hybrid-agree",
            (_M, _KN, _KE, _MX, _KX),
            partial(StaticRule, needs_matching_draft=True),
        ),
    )
}

BUDGET = Field("K", 5, 1, 8)
_EMA = ("1,3,5", "0.2")


def parse_policy(text: str) -> Baseline:
    """The policy that a spec names; its name is the spec as given."""
    check_legible(text)
    words = text.strip().split(":")
    count = 2 if words[0] == "fixed" else 1
    head = ":".join(words[:count])
    if head in KINDS:
        return KINDS[head].parse(text, words[count:])
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


def _ema(text: str, words: list[str]) -> Adaptive:
    if len(words) > len(_EMA):
        raise _malformed(text, "ema", "too many values")
    levels, alpha = *words, *_EMA[len(words) :]
    if not re.fullmatch(rf"{_NUMBER}(,{_NUMBER})*", levels):
        raise _malformed(text, "ema", f"the tiers are '{levels}', not K1,K2,..")
    tiers = list(map(int, levels.split(",")))
    if tiers != sorted(set(tiers)) or not 1 <= tiers[0] <= tiers[-1] <= LONGEST_DRAFT:
        raise _malformed(text, "ema", "tiers must be positive and ascend")
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", alpha) or not 0 < float(alpha) <= 1:
        raise _malformed(text, "ema", f"ALPHA is '{alpha}', not a number in (0, 1]")
    return Adaptive(text, Rival(np.array(tiers), float(alpha), is_budget=False))


KINDS: dict[str, Form | Kind] = {
    **FORMS,
    "budget": Form("budget", (BUDGET,), lambda k: Rival(np.array([k])), Adaptive),
    "ema": Kind("ema:K1,K2,..:ALPHA", ":".join(["ema", *_EMA]), _ema),
}
FIRST_WORDS = frozenset(head.partition(":")[0] for head in KINDS)
"""What specs begin with, up to the first colon."""
