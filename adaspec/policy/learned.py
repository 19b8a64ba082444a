"""The learned policy behind the `Policy` protocol."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import ASYNC
from adaspec.cost.model import Deciding
from adaspec.draft.match import AGREE, AVAILABLE, LENGTH, SEEN
from adaspec.errors import PolicyError, PolicyFault, SpecError
from adaspec.policy.artifact import Artifact, load_artifact
from adaspec.policy.base import Needs, costs_of
from adaspec.policy.manifest import PolicyManifest
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import pinned_planner
from adaspec.policy.planner.budget import forwards_table
from adaspec.policy.planner.memory import LONGEST_NEURAL, Planner
from adaspec.policy.protocol import Batch, Proposal, Report, Setup
from adaspec.policy.shipped import find_policy
from adaspec.policy.spec import parse_policy
from adaspec.policy.static import StaticPolicy
from adaspec.policy.text import BehindDrafts
from adaspec.predict.features import CANDIDATE, TAIL, BehindMatches
from adaspec.predict.fingerprint import feature_fingerprint
from adaspec.predict.model import Model, model_from

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

KNOWN_TOKENS = 200.0
"""So many tokens expected lately, of the most that are remembered, say whether they come."""


class LearnedPolicy:
    """Chooses by what a trained model expects; every stage is a compiled function."""

    stops_early = False

    def __init__(
        self,
        name: str,
        model: Model,
        cap: int,
        neural_cap: int,
        manifest: PolicyManifest | None = None,
        forwards: Mapping[int, int] | None = None,
        memory: bool = False,
    ) -> None:
        """`manifest` is that of the folder it was loaded from; None while it is trained.

        `forwards` are those of the drafter by load. With `memory`, matches may be in the answers of
        earlier requests.
        """
        self.name = name
        self.manifest, self.memory = manifest, memory
        self.model = model
        self.forwards_by_load = forwards_table(forwards or {})
        # Curves reach no further, and compiled code does not check where it writes.
        self.cap, self.neural_cap = cap, min(neural_cap, LONGEST_NEURAL)

    @property
    def needs(self) -> Needs:
        """A draft may be as long as its cap; it does without a drafter."""
        return Needs(draft_len=self.cap, memory=self.memory)

    @property
    def deciding(self) -> Deciding:
        """It plans before drafting, and again after each forward if its model reads drafts."""
        return Deciding.REVISION if self.model.reads_evidence else Deciding.PLAN

    def start(self, setup: Setup) -> None:
        """Forget every request, the throughput, and how good predictions were."""
        self._neural_cap = min(self.neural_cap, setup.neural_cap, self.cap, setup.cap)
        self.reads_drafts = self.model.reads_evidence and setup.shows_tokens
        """Whether drafted tokens change what is expected."""
        self._pinned = pinned_planner(
            [self.model],
            costs_of(self, setup),
            setup.slots,
            min(self.cap, setup.cap),
            self._neural_cap,
            reads_drafts=self.reads_drafts,
            is_async=setup.engine == ASYNC,
            forwards=self.forwards_by_load,
        )
        self.address = self._pinned.address
        """Where the planner lies, for its compiled stages."""

    @property
    def planner(self) -> Planner:
        """The memory that the compiled stages work on."""
        planner: Planner = self._pinned.value
        return planner

    def came(self) -> list[float]:
        """Accepted over expected tokens of drafts of each source, lately; NaN where few are known.

        The sources are n-gram, neural and splice.
        """
        record = self.planner.memory.record
        return [
            float(each["accepted"] / each["expected"]) if each["expected"] >= KNOWN_TOKENS else nan
            for each in record
        ]

    def holds_drafter(self, load: int) -> bool:
        """Where the drafter runs at such a load."""
        return bool(stages.holds_drafter(self.address, load))

    def forwards(self, batch: Batch) -> int:
        """Predict, and run as many forwards as the load has."""
        planner, matches, count = self.planner, batch.matches, len(batch)
        planner.limits["rows"], planner.limits["prompt_tokens"] = count, batch.reading
        for name in ("slots", "prompt_tokens", "position", "holds_neural"):
            getattr(planner.rows, name)[:count] = getattr(batch, name)
        for name in ("length", "start", "agree", "seen", "available"):
            getattr(planner.rows, name)[:count] = getattr(matches, name)
        planner.rows.tail[:count] = batch.context.tail(TAIL)
        planner.rows.candidate[:count] = batch.context.candidate(CANDIDATE)
        forwards: int = stages.plan(self.address)
        return forwards

    def decide(self, batch: Batch) -> Proposal:
        """Choose per row by all that is now known, splices included."""
        drafts, behind = batch.drafts, batch.drafts.behind
        neural_len, ngram_len = np.zeros((2, len(batch)), np.int32)
        if self.reads_drafts and drafts.count:
            assert isinstance(behind, BehindDrafts)
            for at, (facts, copied) in enumerate(zip(*behind.every(), strict=True)):
                length, agree, seen, available = facts[[LENGTH, AGREE, SEEN, AVAILABLE]]
                found = BehindMatches(length, agree, seen, available, copied)
                stages.revise(self.address, at + 1, drafts.tokens, drafts.confidences, found)
        if not stages.predicts_numbers(self.address):
            raise PolicyFault(f"policy '{self.name}' predicts what is no number")
        if stages.choose(self.address, drafts.count, neural_len, ngram_len):
            match, unknown = behind(neural_len), np.full_like(neural_len, -1)
            found = BehindMatches(match.length, match.agree, match.seen, match.available, unknown)
            stages.splice(self.address, neural_len, found, ngram_len)
        return Proposal(neural_len, ngram_len)

    def learn(self, report: Report) -> None:
        """Take in what came of a step."""
        stages.learn(
            self.address,
            report.emitted_tokens,
            report.drafted,
            report.neural_drafted,
            report.accepted,
            report.step_s,
        )


def load_policy(name_or_path: str | Path) -> LearnedPolicy:
    """The policy in a folder, or the shipped one of that name; a `PolicyError` if it is unsound."""
    return policy_from(load_artifact(find_policy(name_or_path), feature_fingerprint()))


def policy_from(artifact: Artifact) -> LearnedPolicy:
    """The policy that a folder's files describe; a `PolicyError` where they do not fit together."""
    try:
        return policy_of(artifact.name, artifact.manifest, artifact.networks, artifact.tables)
    except (PolicyError, SpecError) as error:
        raise PolicyError(
            f"policy '{artifact.name}' cannot be used: {error}: retrain it with 'adaspec train'"
        ) from error


def policy_of(
    name: str,
    manifest: PolicyManifest,
    networks: Mapping[str, NDArray[Any]],
    tables: Mapping[str, NDArray[Any]],
) -> LearnedPolicy:
    """The policy that a manifest and its arrays describe."""
    for key in ("static_tuned", "async_static_tuned"):
        for spec in getattr(manifest, key).values():
            if not isinstance(parse_policy(spec), StaticPolicy):
                raise PolicyError(f"{key} names '{spec}', which is no static rule")
    model = model_from(networks, tables)
    if model.reads_evidence != bool(manifest.evidence):
        said = f"evidence of {', '.join(manifest.evidence)}" if manifest.evidence else "no evidence"
        raise PolicyError(f"its manifest names {said}, which its networks do not fit")
    neural_cap = manifest.neural_cap or 0
    return LearnedPolicy(
        name,
        model,
        manifest.cap,
        neural_cap,
        manifest,
        manifest.forwards,
        "memory" in manifest.sources,
    )
