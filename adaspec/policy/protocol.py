"""What a policy is: one of one's own, which a replay asks in every step, or the learned one.

A policy of one's own is a class with `decide(batch)`. Arrays have an entry per running request. A
row keeps its request until that ends; then another takes the row, at position 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaspec.cost import SYNC
from adaspec.cost.model import CostModel
from adaspec.draft.matches import Matches
from adaspec.errors import PolicyError
from adaspec.policy.artifact import Artifact, PolicyManifest, find_policy, load_artifact
from adaspec.policy.budget import forwards_table
from adaspec.policy.static import Needs, StaticPolicy
from adaspec.predict.features import FEATURES_VERSION
from adaspec.predict.model import LONGEST_NEURAL, Model, model_from

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Setup:
    """What holds for a whole run: step costs, limits, and which evidence drafts will carry."""

    cost: CostModel
    cap: int
    """Most tokens that one draft may hold, splices included."""
    neural_cap: int
    """Most tokens that the neural drafter may draft; 0 where there is none."""
    slots: int
    """Slot numbers are below this."""
    shows_tokens: bool
    """Whether drafted neural tokens are handed over. Where a trace lacks them, a splice is what the
    match behind as many true tokens would copy."""
    shows_confidences: bool
    engine: str = SYNC
    """One of `cost.ENGINES`."""
    in_one_pass: bool = False
    """Whether one forward of the neural drafter drafts all its tokens, however many are used."""
    longest_s: float | None = None
    """The operator's bound: no step is planned that takes longer."""

    def passes(self, tokens: int) -> int:
        """How often the neural drafter runs to draft so many tokens."""
        return min(tokens, 1) if self.in_one_pass else tokens


@dataclass(frozen=True, slots=True)
class Drafts:
    """What the neural drafter has drafted."""

    tokens: Ints
    """(rows, forwards) drafted tokens, -1 where not known."""
    confidences: Floats
    """(rows, forwards, 3) in the order of `trace.schema.CONFIDENCES`; NaN where not known."""


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """All running requests, and what can be asked of them."""

    setup: Setup
    prompt_tokens: Ints
    position: Ints
    """Output tokens already known."""
    matches: Matches
    """Where the last known tokens stood before; an n-gram draft copies what followed them."""
    text: Callable[[int], Ints]
    """(row) -> the tokens known of it."""
    draft: Callable[[int], Drafts]
    """(forwards) -> what the neural drafter drafts in so many forwards, up to `Setup.neural_cap`;
    a step runs as many as were ever asked for in it."""
    splice_matches: Callable[[Ints], Matches]
    """(lengths) -> the match behind each row's first drafted tokens; none where a length is 0.

    Refused where `Setup.shows_tokens` is false."""

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is verified, per row: the first `neural_len` drafted tokens, then `ngram_len` copied.

    With neural_len 0 the copied tokens continue the text, else they are spliced on. They are cut to
    what the match can give.
    """

    neural_len: Ints
    ngram_len: Ints


@dataclass(frozen=True, slots=True)
class VerifiedProposal:
    """What the target made of a step's proposal."""

    batch: PolicyBatch
    proposal: Proposal
    """After cuts."""
    accepted: Ints
    """Of the drafted tokens; may pass the output's end, which `emitted` does not."""
    emitted: Ints
    step_s: float
    """The step's modelled duration, without reading prompts."""


class Policy(Protocol):
    """Decides, per step and per request, who drafts and how far.

    It may also have `learn(report)`, which is told what came of each step, a `name`, and `drafter =
    False` if it never drafts: keeping the drafter ready takes time. Every run begins with a copy of
    the object as it was given.
    """

    def decide(self, batch: PolicyBatch) -> Proposal:
        """What is verified."""


class LearnedPolicy:
    """Chooses by what a trained model predicts; `decision` has the stages of a step."""

    def __init__(
        self,
        name: str,
        model: Model,
        cap: int,
        neural_cap: int,
        manifest: PolicyManifest | None = None,
        forwards: Mapping[int, int] | None = None,
    ) -> None:
        """`manifest` is that of the folder it was loaded from; None while it is trained.

        `forwards` are those of the drafter at first, by load.
        """
        self.name = name
        self.manifest = manifest
        self.model = model
        self.forwards_by_load = forwards_table(forwards or {})
        # Curves reach no further, and compiled code does not check where it writes.
        self.cap, self.neural_cap = cap, min(neural_cap, LONGEST_NEURAL)

    @property
    def needs(self) -> Needs:
        """A draft may be as long as its cap; it does without a drafter."""
        return Needs(draft_len=self.cap)


ServedPolicy: TypeAlias = LearnedPolicy | StaticPolicy


def load_policy(name_or_path: str | Path) -> LearnedPolicy:
    """The policy in a folder, or the shipped one of that name; a `PolicyError` if it is unsound."""
    return policy_from(load_artifact(find_policy(name_or_path)))


def policy_from(artifact: Artifact) -> LearnedPolicy:
    """The policy that a folder's files describe; a `PolicyError` where they do not fit together."""
    manifest = artifact.manifest
    try:
        if manifest.features != FEATURES_VERSION:
            raise PolicyError(
                f"it was made for features {manifest.features}, and this adaspec computes features "
                f"{FEATURES_VERSION}"
            )
        model = model_from(artifact.networks, artifact.tables)
        if model.reads_evidence != bool(manifest.evidence):
            evidence = ", ".join(manifest.evidence)
            said = f"evidence of {evidence}" if evidence else "no evidence"
            raise PolicyError(f"its manifest names {said}, which its networks do not fit")
    except PolicyError as error:
        raise PolicyError(
            f"policy '{artifact.name}' cannot be used: {error}: retrain it with 'adaspec train'"
        ) from error
    caps = manifest.cap, manifest.neural_cap or 0
    return LearnedPolicy(artifact.name, model, *caps, manifest, manifest.forwards)
