"""The manifest of a trace: what recorded it, and which columns and caps it has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from typing import Any

import numpy as np

from adaspec.documents import (
    TEXT,
    TRUTH,
    Rule,
    Rules,
    check_keys,
    check_values,
    is_json,
    or_null,
    some_of,
    upgraded,
    whole,
)
from adaspec.errors import TraceError, check_word
from adaspec.trace.identity import VOCABULARY_HASH
from adaspec.trace.schema import CONFIDENCES, Request
from adaspec.version import __version__

SCHEMA = 4
"""Schema of manifest and columns together; 2 and 3 are read, too."""

MAX_DRAFTED = 128
"""The largest draft cap; a reader allocates a trace's draft cap at every position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts of a trace as a whole; unknown ones are None."""

    target: str | None = None
    drafter: str | None = None
    """Name of the neural drafter; None if none ran."""
    tokenizer: str | None = None
    vocabulary_hash: str | None = None
    """Hash of the tokenizer's tokens and ids, made by `identity.vocabulary_hash`, or its size."""
    neural_cap: int | None = None
    """Count at which neural accepted counts are censored; longer drafts cannot be replayed."""
    draft_cap: int | None = None
    """Drafted tokens stored per position; None if they were not recorded."""
    confidences: tuple[str, ...] = ()
    engine: str | None = None
    engine_version: str | None = None
    hardware: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    synthetic: bool = False
    source: str | None = None
    """Program that made the trace, and from what."""
    adaspec_version: str = __version__
    schema: int = SCHEMA

    where: InitVar[str] = "manifest of a trace"
    """Beginning of errors about these fields."""

    def __post_init__(self, where: str) -> None:
        """Refuse fields that contradict each other, since all later checks rely on them."""
        check_values(self, _RULES, where, TraceError)
        if self.draft_cap is not None and self.neural_cap is None:
            raise TraceError(f"{where}: draft_cap is given but neural_cap is null")
        if self.confidences and self.draft_cap is None:
            raise TraceError(
                f"{where}: confidences are given but draft_cap is null: they belong to drafted "
                "tokens"
            )
        object.__setattr__(self, "confidences", tuple(self.confidences))
        object.__setattr__(self, "sampling", dict(self.sampling))

    @property
    def max_tokens(self) -> int | None:
        """The most output tokens of requests that do not say their own; None if not known."""
        limit = self.sampling.get("max_tokens")
        return limit if MAX_TOKENS.holds(limit) else None

    def to_json(self) -> str:
        """The text of `manifest.json`; keys are sorted, so equal manifests give equal bytes."""
        record = {item.name: getattr(self, item.name) for item in fields(self)}
        return json.dumps(record, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_record(cls, record: object, where: str) -> Manifest:
        """The manifest in a JSON object, which must have all of its keys and no others."""
        values = upgraded(record, "a trace's manifest", SCHEMA, where, TraceError)
        if "draft_cap" not in values:
            raise TraceError(f"{where}: not a trace's manifest: it has no 'draft_cap'")
        # Facts of schemas 2 and 3: a trace of another kind than dense, or with scrambled tokens.
        check_word(values.pop("kind", "dense"), ("dense",), f"{where}: kind", TraceError)
        values.pop("fingerprint", None)
        if values.pop("scrambled", False):
            raise TraceError(
                f"{where}: its token ids went through a secret permutation, so that they mean "
                "nothing to a policy: record the trace again"
            )
        check_keys(values, [item.name for item in fields(cls)], where, TraceError)
        return cls(**values, where=where)

    def difference(self, other: Manifest) -> str | None:
        """The first difference by which rows of the two traces would not mean the same, or None."""
        for item in fields(self):
            if item.name in ("adaspec_version", "source"):
                continue
            present, past = getattr(self, item.name), getattr(other, item.name)
            if item.name == "vocabulary_hash" and None in (present, past):
                continue  # nothing is known to differ
            if present != past:
                return f"{item.name} is {past!r} there and {present!r} here"
        return None


MAX_TOKENS = whole(1, (1 << 31) - 1)
"""The limit of a request's output."""
_TEXT = or_null(TEXT)
_RULES: Rules = {
    **dict.fromkeys(("target", "drafter", "tokenizer", "engine", "engine_version"), _TEXT),
    **dict.fromkeys(("hardware", "source"), _TEXT),
    "vocabulary_hash": or_null(VOCABULARY_HASH),
    "neural_cap": or_null(whole(1, 32767)),
    "draft_cap": or_null(whole(1, MAX_DRAFTED)),
    "synthetic": TRUTH,
    "sampling": Rule(
        lambda value: isinstance(value, Mapping) and is_json(dict(value)), "an object"
    ),
    "confidences": some_of(CONFIDENCES),
}


def manifest_for(
    requests: Sequence[Request], target: str | None, drafter: str | None, source: str | None = None
) -> Manifest:
    """The manifest of a trace of these requests.

    The caps are their largest neural count and longest draft, as longer drafts cannot be replayed.
    """
    drafts = [each.drafted_tokens for each in requests if each.drafted_tokens is not None]
    counts = [each.neural_accepted for each in requests if each.neural_accepted is not None]
    draft_cap = max((each.shape[1] for each in drafts if each.ndim == 2), default=0)
    neural_cap = max((int(each.max(initial=1)) for each in counts), default=0)
    return Manifest(
        target=target,
        drafter=drafter if drafter is not None or not counts else "unknown",
        neural_cap=max(neural_cap, draft_cap) or None,
        draft_cap=draft_cap or None,
        confidences=tuple(name for axis, name in enumerate(CONFIDENCES) if _known(requests, axis)),
        source=source,
    )


def _known(requests: Sequence[Request], axis: int) -> bool:
    """Whether any request has confidences of this kind."""
    known = [each.confidences for each in requests if each.confidences is not None]
    return any(each.shape[2:] > (axis,) and not np.isnan(each[..., axis]).all() for each in known)
