"""The manifest of a policy: what it was trained on, what it fits, what was tuned with it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from adaspec.cost.engine import ASYNC, ENGINES
from adaspec.documents import (
    OBJECT,
    Rule,
    Rules,
    check_keys,
    check_values,
    is_json,
    or_null,
    parse_json,
    some_of,
    upgraded,
    whole,
)
from adaspec.errors import CostError, PolicyError, shown
from adaspec.trace.identity import VOCABULARY_HASH
from adaspec.version import __version__

if TYPE_CHECKING:
    from adaspec.cost.model import CostModel

SCHEMA = 4
"""Schema of the whole folder, arrays included."""

SOURCES = ("ngram", "neural", "splice", "memory")
"""Memory: n-gram drafts are copied from the answers of earlier requests as well."""
EVIDENCE = ("tokens", "confidences")
"""What a drafter may show of a draft: which tokens, and how sure it was of each."""

MAX_CAP = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyManifest:
    """What a policy says of itself; what is unknown is None."""

    features: int
    """The `predict.features.FEATURES_VERSION` that it was trained for."""
    sources: tuple[str, ...]
    """The drafters that it may use, of `SOURCES`."""
    cap: int
    """The longest draft it asks for."""
    neural_cap: int | None
    """The longest neural draft; None where it knows no neural drafter."""
    cost: str
    """The name of the cost model it was tuned with."""
    training_requests: tuple[str, ...]
    """Content hashes of all training requests, ascending."""
    seed: int
    evidence: tuple[str, ...] = ()
    """What of `EVIDENCE` the training traces showed."""
    target: str | None = None
    tokenizer: str | None = None
    vocabulary_hash: str | None = None
    """Hash of the vocabulary of its tables, as `trace.identity.vocabulary_hash` makes it, or its
    size where its traces held no more."""
    drafter: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Results on held-out requests: numbers and texts by name, nested."""
    engine: str = ASYNC
    """The engine at whose costs it was settled at which loads the drafter pays."""
    forwards: Mapping[int, int] = field(default_factory=dict)
    """Forwards of the drafter in a first step, by concurrency; 0 where the drafter does not pay."""
    step_costs: Mapping[str, Any] | None = None
    """The cost model as a cost file holds it, because its name may mean nothing elsewhere."""
    adaspec_version: str = __version__
    schema: int = SCHEMA
    where: InitVar[str] = "manifest of a policy"
    """How an error about these fields begins."""

    def __post_init__(self, where: str) -> None:
        """Refuse what contradicts itself: a server relies on these fields."""
        check_values(self, _RULES, where, PolicyError)
        problem = self._contradiction()
        if problem:
            raise PolicyError(f"{where}: {problem}")
        for name in ("sources", "training_requests", "evidence"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "forwards", dict(sorted(self.forwards.items())))
        object.__setattr__(self, "metrics", dict(self.metrics))

    @property
    def cost_model(self) -> CostModel | None:
        """The cost model it was tuned with; None where neither it nor this build has that."""
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
        record["forwards"] = {str(load): count for load, count in self.forwards.items()}
        return json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> PolicyManifest:
        """The manifest in `text`, which must have every key and no other.

        Raises a `PolicyError` that starts with `where` if it is not one.
        """
        record = parse_json(text, where, PolicyError, "restore it from a copy")
        values = upgraded(record, "a policy's manifest", SCHEMA, where, PolicyError)
        if record["schema"] != SCHEMA:
            raise PolicyError(
                f"{where}: schema {shown(record['schema'])} is of another adaspec, whose features "
                "differ: train the policy again with 'adaspec train'"
            )
        check_keys(values, _RULES, where, PolicyError)
        return cls(**{**values, "forwards": _by_number(values["forwards"])}, where=where)

    def _contradiction(self) -> str | None:
        if self.neural_cap is not None and self.neural_cap > self.cap:
            return f"neural_cap is {self.neural_cap}, more than the cap {self.cap}"
        if ("neural" in self.sources) != (self.neural_cap is not None):
            return f"neural_cap is {self.neural_cap}, which does not fit sources {self.sources}"
        most = self.neural_cap or 0
        for load, forwards in self.forwards.items():
            if forwards > most:
                return f"forwards has {forwards} at {load}, more than neural_cap {most}"
        if self.step_costs is not None:
            try:
                name = self.cost_model.name  # type: ignore[union-attr]
            except CostError as error:
                return str(error)
            if name != self.cost:
                return f"step_costs are of {shown(name)}, and cost is {shown(self.cost)}"
        return None


def _by_number(table: object) -> object:
    """The table with its keys read as the numbers that JSON cannot have as keys."""
    if not isinstance(table, Mapping):
        return table
    return {
        int(key) if isinstance(key, str) and re.fullmatch(r"[1-9][0-9]{0,8}", key) else key: spec
        for key, spec in table.items()
    }


def _by_load(rule: Rule) -> Rule:
    """A rule: an object of such values by concurrency."""
    load = whole(1, 10**9)
    return Rule(
        lambda value: (
            isinstance(value, Mapping)
            and all(load.holds(key) and rule.holds(each) for key, each in value.items())
        ),
        f"an object by concurrency, each {rule.expected}",
    )


def _are_hashes(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and all(isinstance(each, str) and re.fullmatch("[0-9a-f]{16}", each) for each in value)
        and list(value) == sorted(set(value))
    )


_TEXT = Rule(
    lambda value: isinstance(value, str) and 0 < len(value) <= 1000 and value.isprintable(),
    "a text",
)
_CAP = whole(1, MAX_CAP)
_SOURCES = some_of(SOURCES)
_RULES: Rules = {
    "schema": Rule(lambda value: value == SCHEMA, f"{SCHEMA}"),
    "features": whole(1, 10**9),
    "adaspec_version": _TEXT,
    "sources": Rule(lambda value: value and _SOURCES.holds(value), _SOURCES.expected),
    "evidence": some_of(EVIDENCE),
    "cap": _CAP,
    "neural_cap": or_null(_CAP),
    "cost": _TEXT,
    "target": or_null(_TEXT),
    "tokenizer": or_null(_TEXT),
    "vocabulary_hash": or_null(VOCABULARY_HASH),
    "drafter": or_null(_TEXT),
    "training_requests": Rule(_are_hashes, "an ascending list of 16 hex digits each"),
    "seed": whole(0, 2**63 - 1),
    "engine": Rule(ENGINES.__contains__, " or ".join(ENGINES)),
    "forwards": _by_load(whole(0, MAX_CAP)),
    "step_costs": or_null(OBJECT),
    "metrics": Rule(
        lambda value: isinstance(value, Mapping) and is_json(value),
        "an object of finite numbers and texts",
    ),
}
