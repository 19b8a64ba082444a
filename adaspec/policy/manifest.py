"""The manifest of a policy: what it was trained on, what it fits, what was tuned with it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from adaspec import __version__
from adaspec.documents import parse_json
from adaspec.errors import CostError, PolicyError, nearest
from adaspec.trace.identity import VOCABULARY_HASH

if TYPE_CHECKING:
    from adaspec.cost.model import CostModel

SCHEMA = 2
"""Of the whole folder, arrays included: a newer one is refused, an older one upgraded on reading.

2 has `vocabulary_hash`.
"""

SOURCES = ("ngram", "neural", "splice")
EVIDENCE = ("tokens", "confidences")
"""What a drafter may show of a draft: which tokens, and how sure it was of each."""

LONGEST_CAP = 1000
_DEEPEST = 8
"""Levels of the metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyManifest:
    """What a policy says of itself; what is unknown is None."""

    fingerprint: str
    """Of the features it was trained for: names, definitions and order."""
    sources: tuple[str, ...]
    """Whom it may let draft, of `SOURCES`."""
    cap: int
    """The longest draft it asks for."""
    neural_cap: int | None
    """The longest neural draft; None where it knows no neural drafter."""
    cost: str
    """The name of the cost model it was tuned with."""
    static_tuned: Mapping[int, str]
    """By concurrency, the static rule that was best on the training requests."""
    training_requests: tuple[str, ...]
    """Content hashes of every request it saw, ascending."""
    seed: int
    evidence: tuple[str, ...] = ()
    """What of `EVIDENCE` the training traces showed."""
    target: str | None = None
    tokenizer: str | None = None
    vocabulary_hash: str | None = None
    """Of the tokens that its tables speak of, as `trace.identity.vocabulary_hash` makes it."""
    drafter: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """On held-out requests: numbers and texts, by name, as deep as need be."""
    knobs: Mapping[str, float] = field(default_factory=dict)
    """Of the planner."""
    step_costs: Mapping[str, Any] | None = None
    """That cost model itself, as a cost file holds it: its name may mean nothing elsewhere."""
    adaspec_version: str = __version__
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Refuse what contradicts itself: a server relies on these fields."""
        problem = _problem(self)
        if problem:
            raise PolicyError(f"manifest of a policy: {problem}")
        for name in ("sources", "training_requests", "evidence"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "static_tuned", dict(sorted(self.static_tuned.items())))
        object.__setattr__(self, "metrics", dict(self.metrics))
        knobs = {name: float(value) for name, value in self.knobs.items()}
        object.__setattr__(self, "knobs", knobs)

    @property
    def cost_model(self) -> CostModel | None:
        """What its steps were taken to cost; None where neither it nor this build knows."""
        # Imported here: cost models compile, and whoever lists policies need not wait for that.
        from adaspec.cost.builtin import BUILTIN
        from adaspec.cost.load import cost_from_document

        if self.step_costs is not None:
            return cost_from_document(self.step_costs, "step_costs")
        return BUILTIN.get(self.cost)

    def to_json(self) -> str:
        """The manifest as `manifest.json` holds it: keys sorted, so same content, same bytes."""
        record = {item.name: getattr(self, item.name) for item in fields(self)}
        # Texts from the start: JSON has no other keys, and would sort numbers by value.
        record["static_tuned"] = {str(at): spec for at, spec in self.static_tuned.items()}
        return json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> PolicyManifest:
        """The manifest in `text`; a `PolicyError` that starts with `where` if it is not one."""
        return cls.from_record(
            parse_json(text, where, PolicyError, "restore it from a copy"), where
        )

    @classmethod
    def from_record(cls, record: object, where: str = "manifest of a policy") -> PolicyManifest:
        """The manifest that JSON's own types say; every key must be there and known."""
        if not isinstance(record, Mapping) or "schema" not in record:
            raise PolicyError(f"{where}: not a policy's manifest: it has no 'schema'")
        _check_schema(record["schema"], where)
        if record["schema"] == 1:
            record = {"vocabulary_hash": None, **record, "schema": SCHEMA}
        known = [item.name for item in fields(cls)]
        for key in record:
            if key not in known:
                raise PolicyError(f"{where}: unknown key {_shown(key)}{nearest(str(key), known)}")
        missing = sorted(set(known) - set(record))
        if missing:
            raise PolicyError(f"{where}: key '{missing[0]}' is missing: restore it from a copy")
        try:
            return cls(**{**record, "static_tuned": _by_number(record["static_tuned"])})
        except PolicyError as error:
            problem = str(error).partition(": ")[2]
            raise PolicyError(f"{where}: {problem}") from None


def _by_number(table: object) -> object:
    """The table with its keys read as the numbers that JSON cannot have as keys."""
    if not isinstance(table, Mapping):
        return table
    return {
        int(key) if isinstance(key, str) and re.fullmatch(r"[1-9][0-9]{0,8}", key) else key: spec
        for key, spec in table.items()
    }


def _check_schema(schema: object, where: str) -> None:
    if not _is_int(schema, 1, 10**9):
        raise PolicyError(f"{where}: schema is {_shown(schema)}, not a version number")
    if schema > SCHEMA:  # type: ignore[operator]
        raise PolicyError(
            f"{where}: schema {schema} is newer than the {SCHEMA} that adaspec {__version__} "
            "reads: update adaspec"
        )


def _problem(manifest: PolicyManifest) -> str | None:
    """The first thing wrong with the fields, or None."""
    for name, rule, expected in _RULES:
        value = getattr(manifest, name)
        if not rule(value):
            return f"{name} is {_shown(value)}, not {expected}"
    if manifest.neural_cap is not None and manifest.neural_cap > manifest.cap:
        return f"neural_cap is {manifest.neural_cap}, more than the cap {manifest.cap}"
    if ("neural" in manifest.sources) != (manifest.neural_cap is not None):
        return f"neural_cap is {manifest.neural_cap}, which does not fit sources {manifest.sources}"
    if "splice" in manifest.sources and not {"ngram", "neural"} <= set(manifest.sources):
        return f"sources are {manifest.sources}: a splice needs both ngram and neural"
    if "confidences" in manifest.evidence and "tokens" not in manifest.evidence:
        return "evidence has confidences without the tokens that they belong to"
    if manifest.step_costs is not None:
        from adaspec.cost.load import cost_from_document

        try:
            cost = cost_from_document(manifest.step_costs, "step_costs")
        except CostError as error:
            return str(error)
        if cost.name != manifest.cost:
            return f"step_costs are of {_shown(cost.name)}, and cost is {_shown(manifest.cost)}"
    if manifest.evidence and "neural" not in manifest.sources:
        return "evidence is given, but sources know no neural drafter to give it"
    return None


def _is_int(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= 2**63 if isinstance(value, int) else math.isfinite(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 1000 and value.isprintable()


def _is_text_or_none(value: object) -> bool:
    return value is None or _is_text(value)


def _is_cap(value: object) -> bool:
    return _is_int(value, 1, LONGEST_CAP)


def _is_choice(*words: str) -> Callable[[object], bool]:
    """Whether a list holds some of `words`, each once and in their order."""
    return lambda value: (
        isinstance(value, list | tuple) and list(value) == [word for word in words if word in value]
    )


def _is_tuned(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_int(at, 1, 10**9) and _is_text(spec) for at, spec in value.items()
    )


def _is_hashes(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and all(isinstance(each, str) and _HASH.fullmatch(each) for each in value)
        and all(value[at] < value[at + 1] for at in range(len(value) - 1))
    )


def _is_knobs(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_text(name) and _is_number(knob) for name, knob in value.items()
    )


def _is_metrics(value: object, depth: int = 0) -> bool:
    if depth > _DEEPEST:
        return False
    if isinstance(value, Mapping):
        return all(
            isinstance(name, str) and _is_metrics(each, depth + 1) for name, each in value.items()
        )
    if depth and isinstance(value, list | tuple):
        return all(_is_metrics(each, depth + 1) for each in value)
    return bool(depth) and (value is None or isinstance(value, str | bool) or _is_number(value))


_HASH = re.compile(r"[0-9a-f]{16}")
_FINGERPRINT = re.compile(r"[0-9A-Za-z._-]{1,64}")

_RULES: tuple[tuple[str, Callable[[Any], object], str], ...] = (
    ("schema", lambda value: _is_int(value, SCHEMA, SCHEMA), f"{SCHEMA}"),
    (
        "fingerprint",
        lambda value: isinstance(value, str) and _FINGERPRINT.fullmatch(value),
        "a word of letters and digits",
    ),
    ("adaspec_version", _is_text, "a text"),
    (
        "sources",
        lambda value: _is_choice(*SOURCES)(value) and len(value),
        f"a list of {', '.join(SOURCES)}, in this order",
    ),
    ("evidence", _is_choice(*EVIDENCE), f"a list of {', '.join(EVIDENCE)}, in this order"),
    ("cap", _is_cap, f"a number from 1 to {LONGEST_CAP}"),
    (
        "neural_cap",
        lambda value: value is None or _is_cap(value),
        f"a number from 1 to {LONGEST_CAP} or null",
    ),
    ("cost", _is_text, "a cost model's name"),
    ("target", _is_text_or_none, "a text or null"),
    ("tokenizer", _is_text_or_none, "a text or null"),
    (
        "vocabulary_hash",
        lambda value: (
            value is None or (isinstance(value, str) and VOCABULARY_HASH.fullmatch(value))
        ),
        "a count and 16 hex digits or null",
    ),
    ("drafter", _is_text_or_none, "a text or null"),
    ("static_tuned", _is_tuned, "an object of specs by concurrency"),
    ("training_requests", _is_hashes, "an ascending list of 16 hex digits each"),
    ("seed", lambda value: _is_int(value, 0, 2**63 - 1), "a number from 0 on"),
    ("knobs", _is_knobs, "an object of finite numbers by name"),
    (
        "step_costs",
        lambda value: value is None or isinstance(value, Mapping),
        "an object as a cost file holds it",
    ),
    ("metrics", _is_metrics, "an object of finite numbers and texts"),
)
"""(field, what it must pass, what to say it should have been)."""


def _shown(value: object) -> str:
    """A found value on one line of bounded length; huge or deep ones must not hurt here either."""
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    if isinstance(value, list | tuple) and len(value) > 8:
        return f"a list of {len(value)}"
    try:
        text = ascii(value)
    except (RecursionError, ValueError):  # too deep, or a number of too many digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
