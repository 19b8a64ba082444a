"""Training examples, recorded in rollouts of static rules and learned policies."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import SYNC
from adaspec.cost.model import CostModel
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.recorder import new_recorder
from adaspec.policy.static import StaticRule
from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.splicing import SPLICE
from adaspec.replay.learned import run_learned
from adaspec.replay.orders import draw_passes, pools_among
from adaspec.replay.recording import Recording

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of features, each with the flat position whose outcome it should predict."""

    at: Longs
    x: Floats
    depth: NDArray[np.int32]
    """Number of drafted neural tokens that a splice or evidence is about; 0 for decisions."""
    weight: Array

    def rows(self, chosen: NDArray[np.bool_] | Longs | slice) -> Sample:
        """Only the chosen rows."""
        return Sample(self.at[chosen], self.x[chosen], self.depth[chosen], self.weight[chosen])


def sample(at: Longs, x: Floats, depth: NDArray[np.int32] | None = None) -> Sample:
    """A sample in which every row has weight 1."""
    return Sample(at, x, np.zeros(len(at), np.int32) if depth is None else depth, np.ones(len(at)))


NO_SPLICES, NO_EVIDENCE = (
    sample(np.empty(0, np.int64), np.empty((0, len(names)), np.float32))
    for names in (SPLICE, EVIDENCE)
)


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples on which a model's three groups of heads are fitted."""

    decisions: Sample
    splices: Sample = NO_SPLICES
    evidence: Sample = NO_EVIDENCE

    def of(self, members: NDArray[np.bool_], request: NDArray[np.int32]) -> Examples:
        """The examples of the marked requests; `request` has each position's request."""
        return Examples(*(each.rows(members[request[each.at]]) for each in self.samples))

    def thinned(self, most: int, seed: int) -> Examples:
        """At most `most` examples of each kind, drawn at random."""
        rng = np.random.default_rng([seed, 0x7815])
        return Examples(
            *(
                each.rows(np.sort(rng.choice(len(each.at), most, replace=False)))
                if len(each.at) > most
                else each
                for each in self.samples
            )
        )

    @property
    def samples(self) -> tuple[Sample, Sample, Sample]:
        """The samples of all three kinds."""
        return self.decisions, self.splices, self.evidence

    @property
    def by_group(self) -> dict[str, Sample]:
        """The samples by the group of heads that is fitted on each."""
        return {"before": self.decisions, "splice": self.splices, "evidence": self.evidence}


def pooled(parts: list[Examples]) -> Examples:
    """All examples of the parts as one."""
    kinds = zip(*(part.samples for part in parts), strict=True)
    return Examples(
        *(
            Sample(
                *(
                    np.concatenate([getattr(each, item.name) for each in kind])
                    for item in fields(Sample)
                )
            )
            for kind in kinds
        )
    )


def evened(examples: Examples) -> Examples:
    """The examples weighted so that every position counts the same, however often it was visited.

    Policies decide more often at hard positions, and giving those more weight makes worse trees.
    """
    decisions = examples.decisions
    _, place, times = np.unique(decisions.at, return_inverse=True, return_counts=True)
    return replace(examples, decisions=replace(decisions, weight=1.0 / times[place]))


def rollout(
    recording: Recording,
    policy: LearnedPolicy,
    members: NDArray[np.bool_],
    concurrency: int,
    cost: CostModel,
    rng: np.random.Generator,
    rule: StaticRule | None = None,
    engine: str = SYNC,
) -> Examples:
    """The examples of one closed loop, which every marked request enters at least once."""
    order = draw_passes(pools_among(recording, members), concurrency, rng)
    size = int(recording.columns.length[order].sum())
    depths = policy.neural_cap if policy.model.reads_evidence else 0
    recorder = new_recorder(concurrency, size, size * max(depths, 1), size * depths)
    run_learned(
        recording,
        policy,
        order,
        concurrency,
        cost,
        policy.cap,
        rule=rule,
        recorder=recorder,
        engine=engine,
    )
    # A request may enter several times but should count once, so only a share of examples is kept.
    share = min(1.0, float(members.sum()) / len(order))
    decided, spliced, drafted = (
        np.flatnonzero(rng.random(filled) < share) if share < 1 else np.arange(filled)
        for filled in map(int, recorder.filled[0].tolist())
    )
    # Chosen by index, as slices would keep the whole recorder in memory.
    return Examples(
        sample(recorder.at[decided], recorder.x[decided]),
        sample(
            recorder.splice_at[spliced],
            recorder.splice_x[spliced],
            recorder.splice_length[spliced],
        ),
        sample(
            recorder.evidence_at[drafted],
            recorder.evidence_x[drafted],
            recorder.evidence_depth[drafted],
        ),
    )
