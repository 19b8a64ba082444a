"""The learned policy, and how it comes from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from adaspec.errors import PolicyError
from adaspec.policy.artifact import Artifact, find_policy, load_artifact
from adaspec.policy.forwards import forwards_table
from adaspec.policy.manifest import PolicyManifest
from adaspec.policy.static import Needs, StaticPolicy
from adaspec.predict.features import FEATURES_VERSION
from adaspec.predict.model import LONGEST_NEURAL, Model, model_from


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
