"""The manifest of a policy: what it was trained on, what it fits, what was tuned with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from adaspec.cost.engine import ASYNC, Engine
from adaspec.errors import CostError, PolicyError, shown
from adaspec.records import Text, convert, parse_json, upgraded
from adaspec.trace.identity import VocabularyHash
from adaspec.version import __version__

if TYPE_CHECKING:
    from adaspec.cost.model import CostModel

SCHEMA = 4
"""Schema of the whole folder, arrays included."""

Source = Literal["ngram", "neural", "splice"]
Evidence = Literal["tokens", "confidences"]
"""What a drafter may show of a draft: which tokens, and how sure it was of each."""
Cap = Annotated[int, Meta(ge=1, le=1000)]
Load = Annotated[int, Meta(ge=1)]


class PolicyManifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a policy says of itself; what is unknown is None."""

    features: Annotated[int, Meta(ge=1)]
    """The `predict.features.FEATURES_VERSION` that it was trained for."""
    sources: Annotated[tuple[Source, ...], Meta(min_length=1)]
    """The drafters that it may use."""
    cap: Cap
    """The longest draft it asks for."""
    neural_cap: Cap | None
    """The longest neural draft; None where it knows no neural drafter."""
    cost: Text
    """The name of the cost model it was tuned with."""
    training_requests: tuple[
        Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z", description="16 hex digits")], ...
    ]
    """Content hashes of all training requests, ascending."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    evidence: tuple[Evidence, ...] = ()
    """What the training traces showed."""
    target: Text | None = None
    tokenizer: Text | None = None
    vocabulary_hash: VocabularyHash | None = None
    """Hash of the vocabulary of its tables, or its size where its traces held no more."""
    drafter: Text | None = None
    metrics: dict[str, Any] = {}
    """Results on held-out requests: numbers and texts by name, nested."""
    engine: Engine = ASYNC
    """The engine at whose costs it was settled at which loads the drafter pays."""
    forwards: dict[Load, int] = {}
    """Forwards of the drafter in a first step, by concurrency; 0 where the drafter does not pay."""
    step_costs: dict[str, Any] | None = None
    """The cost model as a cost file holds it, because its name may mean nothing elsewhere."""
    adaspec_version: Text = __version__
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Refuse what contradicts itself: a server relies on these fields."""
        if self.neural_cap is not None and self.neural_cap > self.cap:
            raise PolicyError(f"neural_cap is {self.neural_cap}, more than the cap {self.cap}")
        if ("neural" in self.sources) != (self.neural_cap is not None):
            raise PolicyError(
                f"neural_cap is {self.neural_cap}, which does not fit sources {self.sources}"
            )
        most = self.neural_cap or 0
        for load, forwards in self.forwards.items():
            if not 0 <= forwards <= most:
                raise PolicyError(
                    f"forwards has {forwards} at {load}, and neural_cap allows 0 to {most}"
                )
        if self.step_costs is not None:
            try:
                name = self.cost_model.name  # type: ignore[union-attr]
            except CostError as error:
                raise PolicyError(str(error)) from None
            if name != self.cost:
                raise PolicyError(
                    f"step_costs are of {shown(name)}, and cost is {shown(self.cost)}"
                )

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
        # Loads are texts from the start: JSON has no other keys, and would sort numbers by value.
        forwards = {str(load): count for load, count in self.forwards.items()}
        record = structs.asdict(self) | {"forwards": forwards}
        return json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> PolicyManifest:
        """The manifest in `text`; raises a `PolicyError` that starts with `where` if it is none."""
        record = parse_json(text, where, PolicyError, "restore it from a copy")
        values = upgraded(record, "a policy's manifest", SCHEMA, where, PolicyError)
        if record["schema"] != SCHEMA:
            raise PolicyError(
                f"{where}: schema {shown(record['schema'])} is of another adaspec, whose features "
                "differ: train the policy again with 'adaspec train'"
            )
        return convert(values, cls, where, PolicyError)
