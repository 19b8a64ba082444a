"""The manifest of a trace: what recorded it, how far it reaches, what may be read from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from adaspec import __version__
from adaspec.documents import is_json, parse_json
from adaspec.errors import TraceError, nearest
from adaspec.trace.identity import VOCABULARY_HASH
from adaspec.trace.schema import CONFIDENCES

SCHEMA = 2
"""Of manifest and columns together: an older version is upgraded on reading, a newer refused.

2 has `vocabulary_hash`.
"""

KINDS = ("dense", "logged")

MOST_DRAFTED = 128
"""Drafted tokens per position: a reader sets room aside for so many at every one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a trace says of itself; everything unknown is None."""

    kind: str
    target: str | None = None
    drafter: str | None = None
    """The neural drafter's name, None where none ran."""
    tokenizer: str | None = None
    vocabulary_hash: str | None = None
    """Of the tokenizer's tokens and their ids, as `identity.vocabulary_hash` makes it."""
    neural_cap: int | None = None
    """Neural accepted counts are censored here; a longer draft cannot be replayed."""
    draft_cap: int | None = None
    """Drafted tokens stored per position, None where they were not recorded."""
    confidences: tuple[str, ...] = ()
    engine: str | None = None
    engine_version: str | None = None
    hardware: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    """Of the features or the policy that was live, for a logged trace."""
    scrambled: bool = False
    """Whether token ids went through a secret permutation."""
    synthetic: bool = False
    source: str | None = None
    """What made the trace, and from what."""
    adaspec_version: str = __version__
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Refuse what contradicts itself: every later check relies on these fields."""
        problem = _problem(self)
        if problem:
            raise TraceError(f"manifest of a trace: {problem}")
        object.__setattr__(self, "confidences", tuple(self.confidences))
        object.__setattr__(self, "sampling", dict(self.sampling))

    def to_json(self) -> str:
        """The manifest as `manifest.json` holds it: keys sorted, so same content, same bytes."""
        record = {item.name: getattr(self, item.name) for item in fields(self)}
        record["sampling"] = dict(self.sampling)
        record["confidences"] = list(self.confidences)
        return json.dumps(record, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Manifest:
        """The manifest in `text`; a `TraceError` that starts with `where` if it is not one."""
        record = parse_json(text, where, TraceError, "restore it from a copy")
        if not isinstance(record, dict) or "schema" not in record:
            raise TraceError(f"{where}: not a trace's manifest: it has no 'schema'")
        _check_schema(record["schema"], where)
        if record["schema"] == 1:
            record = {"vocabulary_hash": None, **record, "schema": SCHEMA}
        known = [item.name for item in fields(cls)]
        for key in record:
            if key not in known:
                raise TraceError(f"{where}: unknown key '{key}'{nearest(key, known)}")
        missing = sorted(set(known) - set(record))
        if missing:
            raise TraceError(f"{where}: key '{missing[0]}' is missing: restore it from a copy")
        try:
            return cls(**record)
        except TraceError as error:
            problem = str(error).partition(": ")[2]
            raise TraceError(f"{where}: {problem}") from None

    def difference(self, other: Manifest) -> str | None:
        """The first field in which rows of the two traces would not mean the same, or None."""
        for item in fields(self):
            if item.name in ("adaspec_version", "source"):
                continue
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name == "vocabulary_hash" and None in (mine, theirs):
                continue  # an older trace may be gone on with
            if mine != theirs:
                return f"{item.name} is {theirs!r} there and {mine!r} here"
        return None


def _check_schema(schema: object, where: str) -> None:
    if not _is_int(schema) or schema < 1:  # type: ignore[operator]
        raise TraceError(f"{where}: schema is {schema!r}, not a version number")
    if schema > SCHEMA:  # type: ignore[operator]
        raise TraceError(
            f"{where}: schema {schema} is newer than the {SCHEMA} that adaspec {__version__} "
            "reads: update adaspec"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _problem(manifest: Manifest) -> str | None:
    """The first thing wrong with the fields, or None."""
    if manifest.kind not in KINDS:
        return f"kind is {manifest.kind!r}, not one of {', '.join(KINDS)}"
    texts = ("target", "drafter", "tokenizer", "engine", "engine_version", "hardware")
    for name in (*texts, "fingerprint", "source"):
        value = getattr(manifest, name)
        if value is not None and not (isinstance(value, str) and is_json(value)):
            return f"{name} is {value!r}, not a text or null"
    vocabulary = manifest.vocabulary_hash
    if vocabulary is not None and not (
        isinstance(vocabulary, str) and VOCABULARY_HASH.fullmatch(vocabulary)
    ):
        return f"vocabulary_hash is {vocabulary!r}, not a count and 16 hex digits or null"
    for name, most in (("neural_cap", 32767), ("draft_cap", MOST_DRAFTED)):
        value = getattr(manifest, name)
        if value is not None and not (_is_int(value) and 1 <= value <= most):
            return f"{name} is {value!r}, not a number from 1 to {most} or null"
    for name in ("scrambled", "synthetic"):
        if not isinstance(getattr(manifest, name), bool):
            return f"{name} is {getattr(manifest, name)!r}, not true or false"
    if not isinstance(manifest.sampling, Mapping):
        return f"sampling is {manifest.sampling!r}, not an object"
    if not is_json(dict(manifest.sampling)):
        return f"sampling is {manifest.sampling!r:.60}, which JSON cannot hold"
    if not isinstance(manifest.confidences, list | tuple):
        return f"confidences is {manifest.confidences!r}, not a list"
    for name in manifest.confidences:
        if name not in CONFIDENCES:
            return f"unknown confidence {name!r}{nearest(str(name), CONFIDENCES)}"
    if manifest.draft_cap is not None and manifest.neural_cap is None:
        return "draft_cap is given but neural_cap is null"
    if manifest.confidences and manifest.draft_cap is None:
        return "confidences are given but draft_cap is null: they belong to drafted tokens"
    return None
