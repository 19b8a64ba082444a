"""Examples to learn from: what rollouts of static rules and learned policies recorder."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
    """Rows of features, each with the flat position whose outcome it is to predict."""

    at: Longs
    x: Floats
    depth: NDArray[np.int32]
    """Drafted neural tokens that a splice or evidence is about; 0 for decisions."""
    weight: Array

    def rows(self, chosen: NDArray[np.bool_] | Longs | slice) -> Sample:
        """Only the chosen rows."""
        return Sample(self.at[chosen], self.x[chosen], self.depth[chosen], self.weight[chosen])

    def joined(self, other: Sample) -> Sample:
        """These rows, then the other ones."""
        return Sample(
            *(
                np.concatenate([getattr(self, name), getattr(other, name)])
                for name in Sample.__dataclass_fields__
            )
        )


def sample(at: Longs, x: Floats, depth: NDArray[np.int32] | None = None) -> Sample:
    """Rows that all weigh 1."""
    return Sample(at, x, np.zeros(len(at), np.int32) if depth is None else depth, np.ones(len(at)))


def no_rows(features: int) -> Sample:
    """A sample without rows."""
    return sample(np.empty(0, np.int64), np.empty((0, features), np.float32))


NO_SPLICES = no_rows(len(SPLICE))
NO_EVIDENCE = no_rows(len(EVIDENCE))


@dataclass(frozen=True, slots=True)
class Examples:
    """What a model's three groups of heads are fitted on."""

    decisions: Sample
    splices: Sample = NO_SPLICES
    evidence: Sample = NO_EVIDENCE

    def of(self, members: NDArray[np.bool_], request: NDArray[np.int32]) -> Examples:
        """The examples of the marked requests; `request` has each position's request."""
        return Examples(*(each.rows(members[request[each.at]]) for each in self.samples))

    def thinned(self, most: int, seed: int) -> Examples:
        """At most so many of each kind, drawn at random."""
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
        """All three kinds."""
        return self.decisions, self.splices, self.evidence


def pooled(parts: list[Examples]) -> Examples:
    """All examples of the parts."""
    first, *others = parts
    for other in others:
        pairs = zip(first.samples, other.samples, strict=True)
        first = Examples(*(a.joined(b) for a, b in pairs))
    return first


def evened(examples: Examples) -> Examples:
    """Weighed so that every position counts alike, however often a decision was made there.

    Policies decide more often at hard positions, and to weigh those more makes the trees worse.
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
) -> Examples:
    """The examples of one closed loop over the marked requests, every one of which enters."""
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
    )
    # A request that entered several times counts once, so only a share of its examples is kept.
    share = min(1.0, float(members.sum()) / len(order))
    a, b, c = (
        np.flatnonzero(rng.random(int(filled)) < share) if share < 1 else slice(0, int(filled))
        for filled in recorder.filled[0].tolist()
    )
    return Examples(
        sample(recorder.at[a].copy(), recorder.x[a].copy()),
        sample(
            recorder.splice_at[b].copy(),
            recorder.splice_x[b].copy(),
            recorder.splice_length[b].copy(),
        ),
        sample(
            recorder.evidence_at[c].copy(),
            recorder.evidence_x[c].copy(),
            recorder.evidence_depth[c].copy(),
        ),
    )
