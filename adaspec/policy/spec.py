"""The specs of policies, such as `hybrid-splice:4:20:2:2:5`, which are of one of these `KINDS`.

What only replays know (oracles, suffix decoding) has specs of its own in `replay/contender.py`.

What a policy needs of an engine or a trace it says itself (`Needs`). How a kind is replayed, says
`adaspec/replay/player.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from adaspec.errors import GONE, SpecError, nearest
from adaspec.policy.static import (
    LONGEST_BUDGET,
    NEVER,
    Budgeted,
    Online,
    StaticPolicy,
    StaticRule,
)

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
