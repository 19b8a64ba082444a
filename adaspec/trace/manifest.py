"""The manifest of a trace: what recorded it, and which columns and caps it has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, structs

from adaspec.errors import TraceError, check_word, shown
from adaspec.records import check, convert, fits, upgraded
from adaspec.trace.identity import VocabularyHash
from adaspec.trace.schema import CONFIDENCES, Request
from adaspec.version import __version__

SCHEMA = 4
"""Schema of manifest and columns together; 2 and 3 are read, too."""
TokenLimit = Annotated[
    int, Meta(ge=1, lt=1 << 31, description="a whole number from 1 to 2147483647")
]
"""The limit of a request's output."""


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts of a trace as a whole; unknown ones are None, as the drafter where none ran."""

    target: str | None = None
    drafter: str | None = None
    tokenizer: str | None = None
    vocabulary_hash: VocabularyHash | None = None
    neural_cap: Annotated[int, Meta(ge=1, le=32767)] | None = None
    """Count at which neural accepted counts are censored; longer drafts cannot be replayed."""
    draft_cap: Annotated[int, Meta(ge=1, le=128)] | None = None
    """Drafted tokens stored per position; None if they were not recorded."""
    confidences: tuple[str, ...] = ()
    engine: str | None = None
    engine_version: str | None = None
    hardware: str | None = None
    sampling: dict[str, Any] = {}
    source: str | None = None
    adaspec_version: str = __version__
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Refuse what does not fit together, since all later checks rely on these fields."""
        check(self, "manifest of a trace", TraceError)
        if self.confidences != tuple(each for each in CONFIDENCES if each in self.confidences):
            known = f"expected some of {', '.join(CONFIDENCES)}, in this order"
            raise TraceError(f"confidences is {shown(self.confidences)}: {known}")
        if self.draft_cap is not None and self.neural_cap is None:
            raise TraceError("draft_cap is given but neural_cap is null")
        if self.confidences and self.draft_cap is None:
            raise TraceError("confidences are given but draft_cap is null")

    @property
    def max_tokens(self) -> int | None:
        """The most output tokens of requests that do not say their own; None if not known."""
        limit = self.sampling.get("max_tokens")
        return limit if fits(limit, TokenLimit) else None

    def to_json(self) -> str:
        """The text of `manifest.json`; keys are sorted, so equal manifests give equal bytes."""
        return json.dumps(structs.asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_record(cls, record: object, where: str) -> Manifest:
        """The manifest in a JSON object; raises a `TraceError` that starts with `where`."""
        values = upgraded(record, "a trace's manifest", SCHEMA, where, TraceError)
        if "draft_cap" not in values:
            raise TraceError(f"{where}: not a trace's manifest: it has no 'draft_cap'")
        # Facts of before: a made-up trace, one of another kind than dense, or of scrambled tokens.
        values.pop("synthetic", None)
        check_word(values.pop("kind", "dense"), ("dense",), f"{where}: kind", TraceError)
        values.pop("fingerprint", None)
        if values.pop("scrambled", False):
            raise TraceError(f"{where}: its token ids are scrambled: record the trace again")
        return convert(values, cls, where, TraceError)

    def difference(self, other: Manifest) -> str | None:
        """The first difference by which rows of the two traces would not mean the same, or None."""
        for name, present in structs.asdict(self).items():
            past = getattr(other, name)
            unknown = name == "vocabulary_hash" and None in (present, past)
            if present != past and not unknown and name not in ("adaspec_version", "source"):
                return f"{name} is {past!r} there and {present!r} here"
        return None


def manifest_for(
    requests: Sequence[Request],
    target: str | None = None,
    drafter: str | None = None,
    source: str | None = None,
) -> Manifest:
    """The manifest of a trace of these requests; the caps are as `write_trace` says."""
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
