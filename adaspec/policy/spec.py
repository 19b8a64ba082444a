"""The grammar of policy specs: text such as `hybrid-splice:4:20:2:2:5` to a policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from adaspec.errors import SpecError, nearest
from adaspec.policy.adaptive import BUDGET_DEPTH, BatchRange, BatchTable, Budget, Ema
from adaspec.policy.protocol import Policy
from adaspec.policy.static import NEVER, StaticPolicy, StaticRule

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
class Form:
    """One kind of spec: its fields in order, and what they make."""

    head: str
    fields: tuple[Field, ...]
    build: Callable[..., StaticRule]
    about: str

    @property
    def usage(self) -> str:
        """The spec with its fields' names."""
        return ":".join([self.head, *(field.name for field in self.fields)])

    @property
    def default(self) -> str:
        """The spec that the bare head means."""
        return ":".join([self.head, *(str(field.default) for field in self.fields)])


def _none() -> StaticRule:
    return StaticRule()


def _fixed_ngram(k: int, min_match: int) -> StaticRule:
    return StaticRule(min_match=min_match, ngram_len=k)


def _fixed_ngram_vllm(k: int, low: int, high: int) -> StaticRule:
    return StaticRule(min_match=low, ngram_len=k, vllm_match=(low, high))


def _fixed_neural(k: int) -> StaticRule:
    return StaticRule(neural_len=k)


def _hybrid(m: int, kn: int, ke: int) -> StaticRule:
    return StaticRule(min_match=m, ngram_len=kn, neural_len=ke)


def _hybrid_splice(m: int, kn: int, ke: int, mx: int, kx: int) -> StaticRule:
    return StaticRule(m, kn, ke, splice_match=mx, splice_len=kx)


def _hybrid_agree(m: int, kn: int, ke: int, mx: int, kx: int) -> StaticRule:
    return StaticRule(m, kn, ke, splice_match=mx, splice_len=kx, agree=True)


_M = Field("M", 4, 1, NEVER)
_KN = Field("KN", 20, 1)
_KE = Field("KE", 2, 1)
_MX = Field("MX", 2, 1, NEVER)
_KX = Field("KX", 5, 1)

FORMS = {
    form.head: form
    for form in (
        Form("none", (), _none, "no speculation"),
        Form(
            "fixed:ngram",
            (Field("K", 8, 1), Field("MIN", 3, 1, 32)),
            _fixed_ngram,
            "K n-gram tokens where the match is at least MIN long",
        ),
        Form(
            "fixed:ngram-vllm",
            (Field("K", 8, 1), Field("MIN", 3, 1, 32), Field("MAX", 7, 1, 32)),
            _fixed_ngram_vllm,
            "K n-gram tokens by vLLM's own look-up: match MIN to MAX long, earliest occurrence",
        ),
        Form("fixed:neural", (Field("K", 3, 1),), _fixed_neural, "K neural tokens, always"),
        Form(
            "hybrid",
            (_M, Field("KN", 16, 1), Field("KE", 3, 0)),
            _hybrid,
            "KN n-gram tokens where the match is at least M long, else KE neural tokens",
        ),
        Form(
            "hybrid-splice",
            (_M, _KN, _KE, _MX, _KX),
            _hybrid_splice,
            "hybrid, and behind the neural tokens KX n-gram tokens where the match is MX long",
        ),
        Form(
            "hybrid-agree",
            (_M, _KN, _KE, _MX, _KX),
            _hybrid_agree,
            "hybrid-splice, but n-gram only where the first drafted neural token agrees",
        ),
    )
}

BUDGET = Field("K", 5, 1, BUDGET_DEPTH)
EMA_TIERS = (1, 3, 5)
EMA_ALPHA = 0.2
TABLE = (BatchRange(1, 8, 5), BatchRange(9, 32, 3), BatchRange(33, None, 1))


def table_spec(ranges: tuple[BatchRange, ...]) -> str:
    """The spec of a batch table."""
    spans = (f"{r.low}-{'' if r.high is None else r.high}={r.length}" for r in ranges)
    return "batch-table:" + ",".join(spans)


def ema_spec(tiers: tuple[int, ...], alpha: float) -> str:
    """The spec of an ema policy."""
    return f"ema:{','.join(map(str, tiers))}:{alpha:g}"


DEFAULTS = {
    **{head: form.default for head, form in FORMS.items()},
    "budget": f"budget:{BUDGET.default}",
    "ema": ema_spec(EMA_TIERS, EMA_ALPHA),
    "batch-table": table_spec(TABLE),
}
"""What each bare spec means."""

USAGES = {
    **{head: form.usage for head, form in FORMS.items()},
    "budget": "budget:K",
    "ema": "ema:K1,K2,..:ALPHA",
    "batch-table": "batch-table:LO-HI=K,..",
}


def parse_policy(text: str) -> Policy:
    """The policy that a spec names; its name is the spec as given."""
    check_legible(text)
    words = text.strip().split(":")
    head = ":".join(words[:2]) if words[0] == "fixed" else words[0]
    rest = words[2:] if words[0] == "fixed" else words[1:]
    if head in FORMS:
        return StaticPolicy(text, _rule(text, FORMS[head], rest))
    if head == "budget":
        values = _numbers(text, "budget", (BUDGET,), rest)
        return Budget(text, values[0])
    if head == "ema":
        return _ema(text, rest)
    if head == "batch-table":
        return _table(text, rest)
    guess = nearest(":".join(words[:2]), USAGES) or nearest(head, USAGES) or "."
    raise SpecError(f"unknown policy spec '{text}'{guess} {_known()}")


def check_legible(text: str) -> None:
    """Refuse what no error could quote in one line."""
    if len(text) > _LONGEST_SPEC or not text.isprintable():
        raise SpecError(
            f"malformed policy spec {text[:40]!r}..: at most {_LONGEST_SPEC} printable characters "
            "make a spec"
        )


def rule_spec(head: str, *values: int) -> str:
    """The spec of one of `FORMS` with these values."""
    return ":".join([head, *map(str, values)])


def _known() -> str:
    trained = "; a trained policy goes by its folder ('./NAME') or its shipped name"
    return "Known: " + ", ".join(USAGES.values()) + trained


def _malformed(text: str, head: str, why: str) -> SpecError:
    return SpecError(f"malformed policy spec '{text}': {why}. Write {USAGES[head]}")


def _rule(text: str, form: Form, rest: list[str]) -> StaticRule:
    values = _numbers(text, form.head, form.fields, rest)
    if form.head == "fixed:ngram-vllm" and values[1] > values[2]:
        raise _malformed(text, form.head, f"MIN={values[1]} exceeds MAX={values[2]}")
    return form.build(*values)


def _numbers(text: str, head: str, fields: tuple[Field, ...], rest: list[str]) -> list[int]:
    if len(rest) > len(fields):
        raise _malformed(text, head, f"{len(rest)} values, at most {len(fields)} are known")
    values = [field.default for field in fields]
    for i, (word, field) in enumerate(zip(rest, fields, strict=False)):
        if not re.fullmatch(_NUMBER, word):
            what = f"not a whole number from {field.low} to {field.high}"
            raise _malformed(text, head, f"{field.name} is '{word}', {what}")
        values[i] = int(word)
        if not field.low <= values[i] <= field.high:
            raise _malformed(
                text, head, f"{field.name}={word} is outside {field.low}..{field.high}"
            )
    return values


def _ema(text: str, rest: list[str]) -> Ema:
    if len(rest) > 2:
        raise _malformed(text, "ema", "too many values")
    tiers: tuple[int, ...] = EMA_TIERS
    alpha = EMA_ALPHA
    if rest:
        if not re.fullmatch(rf"{_NUMBER}(,{_NUMBER})*", rest[0]):
            raise _malformed(text, "ema", f"the tiers are '{rest[0]}', not K1,K2,..")
        tiers = tuple(map(int, rest[0].split(",")))
        if list(tiers) != sorted(set(tiers)) or not 1 <= tiers[0] <= tiers[-1] <= LONGEST_DRAFT:
            raise _malformed(text, "ema", "tiers must be positive and ascend")
    if len(rest) == 2:
        if not re.fullmatch(r"[0-9]*\.?[0-9]+", rest[1]) or not 0 < float(rest[1]) <= 1:
            raise _malformed(text, "ema", f"ALPHA is '{rest[1]}', not a number in (0, 1]")
        alpha = float(rest[1])
    return Ema(text, tiers, alpha)


def _table(text: str, rest: list[str]) -> BatchTable:
    if not rest:
        return BatchTable(text, TABLE)
    ranges: list[BatchRange] = []
    if len(rest) > 1:
        raise _malformed(text, "batch-table", "too many values")
    for word in rest[0].split(","):
        found = re.fullmatch(rf"({_NUMBER})-({_NUMBER})?=({_NUMBER})", word)
        if not found:
            raise _malformed(text, "batch-table", f"'{word}' is not LO-HI=K")
        low, length = int(found[1]), int(found[3])
        high = int(found[2]) if found[2] else None
        last = ranges[-1].high if ranges else 0
        if last is None or low <= last or (high is not None and high < low):
            raise _malformed(text, "batch-table", "ranges must ascend and not overlap")
        if length > LONGEST_DRAFT:
            raise _malformed(text, "batch-table", f"K={length} exceeds {LONGEST_DRAFT}")
        ranges.append(BatchRange(low, high, length))
    return BatchTable(text, tuple(ranges))
