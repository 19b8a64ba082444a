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
from adaspec.errors import PolicyError, SpecError
from adaspec.policy.artifact import Artifact, load_artifact
from adaspec.policy.base import Needs, costs_of
from adaspec.policy.manifest import PolicyManifest
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import Pinned
from adaspec.policy.planner.budget import forwards_table
from adaspec.policy.planner.memory import LONGEST_NEURAL, knob_row
from adaspec.policy.planner.state import Planner, new_planner
from adaspec.policy.protocol import Arrival, Batch, Drafts, Outcome, Proposal, Setup
from adaspec.policy.shipped import find_policy
from adaspec.policy.spec import parse_policy
from adaspec.policy.static import StaticPolicy
from adaspec.predict.features import BEFORE, CANDIDATE, TAIL
from adaspec.predict.model import Model, feature_fingerprint, model_from

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

KNOWN_TOKENS = 200.0
"""So many tokens expected lately, of the most that are remembered, say whether they come."""
SHOWN_SURVIVAL = 8
"""How far the curve of a copy is told, of up to 48 tokens."""


class LearnedPolicy:
    """Chooses by what a trained model expects; every stage is a compiled function."""

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
        self.knobs = knob_row({})
        self.forwards = forwards_table(forwards or {})
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
        self._is_late = setup.engine == ASYNC
        self._neural_cap = min(self.neural_cap, setup.neural_cap, self.cap, setup.cap)
        self.reads_drafts = self.model.reads_evidence and setup.shows_tokens
        """Whether drafted tokens change what is expected."""
        self._model = Pinned(self.model.compiled())
        planner = new_planner(
            [self.model],
            np.array([self._model.address]),
            self.knobs,
            costs_of(self, setup),
            setup.slots,
            min(self.cap, setup.cap),
            self._neural_cap,
            reads_drafts=self.reads_drafts,
            is_late=self._is_late,
            forwards=self.forwards,
        )
        self._pinned = Pinned(planner)
        self.address = self._pinned.address
        """Where the planner lies, for its compiled stages."""
        self._observed = 0

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

    def admit(self, arrival: Arrival) -> bool:
        """With the neural drafter where it runs at such a load."""
        return bool(stages.admits(self.address, arrival.running))

    def keep(self, batch: Batch) -> bool:
        """Held on to, unless the load has become one at which the drafter does not run."""
        return bool(stages.keeps(self.address, len(batch)))

    def plan(self, batch: Batch) -> int:
        """Predict, and run as many forwards as the load has."""
        self._observed = 0
        matches = batch.matches
        planned: int = stages.plan_columns(
            self.address,
            batch.slots,
            batch.prompt_tokens,
            batch.position,
            batch.holds_neural,
            matches.length,
            matches.start,
            matches.agree,
            matches.seen,
            matches.available,
            batch.context.tail(TAIL),
            batch.context.candidate(CANDIDATE),
            batch.reading,
        )
        return planned

    def budget(self, batch: Batch) -> int:
        """What was decided for this step before the last one's outcome was known."""
        return int(stages.budget(self.address))

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Go on as planned."""
        if self.reads_drafts and not self._is_late:
            self._observe(batch, drafts)
        return True

    def _observe(self, batch: Batch, drafts: Drafts) -> None:
        """Take in the tokens drafted since the last call, each with the match behind it."""
        for depth in range(self._observed + 1, drafts.count + 1):
            drafted = batch.holds_neural & (drafts.tokens[:, depth - 1] >= 0)
            behind = drafts.behind(np.where(drafted, depth, 0).astype(np.int32))
            stages.revise_columns(
                self.address,
                depth,
                drafts.tokens,
                drafts.confidences,
                behind.length,
                behind.agree,
                behind.seen,
                behind.available,
                behind.start,
                batch.context.token_at(behind.start),
            )
        self._observed = drafts.count

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """Choose again per row by all that is now known, splices included."""
        count = drafts.count
        if self.reads_drafts:
            self._observe(batch, drafts)
        neural_len, ngram_len = np.zeros((2, len(batch.slots)), np.int32)
        if stages.choose(self.address, count, neural_len, ngram_len):
            behind = drafts.behind(neural_len)
            stages.splice_columns(
                self.address,
                neural_len,
                behind.length,
                behind.agree,
                behind.seen,
                behind.available,
                ngram_len,
            )
        return Proposal(neural_len, ngram_len)

    def expects(self, proposal: Proposal) -> Floats:
        """Tokens expected to be accepted per row of the last proposal, spliced ones left out."""
        expected: Floats = stages.expected_tokens(self.address)
        return expected

    def shortened(self, proposal: Proposal, neural_len: Ints, ngram_len: Ints) -> None:
        """Expect of the last proposal only what drafts cut to these lengths leave of it."""
        stages.shorten(self.address, proposal.neural_len, proposal.ngram_len, neural_len, ngram_len)

    def reasons(self, rows: int) -> tuple[float, list[dict[str, Any]]]:
        """The price of a token in the last proposal, and why its first rows were decided so.

        Of each row: its features by name, and the survival curves of a copy and a neural draft.
        """
        memory, price = self.planner.memory, self.planner.budget.step["price"][0]
        most = min(self.cap, SHOWN_SURVIVAL)
        return float(price), [
            {
                "features": dict(zip(BEFORE, memory.features[row].tolist(), strict=True)),
                "survival_ngram": memory.ngram[row, 1 : most + 1].tolist(),
                "survival_neural": memory.neural[row, 1 : self._neural_cap + 1].tolist(),
            }
            for row in range(rows)
        ]

    def learn(self, batch: Batch, proposal: Proposal, outcome: Outcome) -> None:
        """Take in a step's outcome."""
        stages.learn(
            self.address,
            outcome.emitted_tokens,
            outcome.drafted,
            outcome.neural_drafted,
            outcome.accepted,
            outcome.step_s,
        )

    def release(self, slots: Ints) -> None:
        """A slot's history is forgotten when the next request takes it."""


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
