"""Training examples: what a policy sees at every position of a recording."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import LONGEST_NEURAL
from adaspec.policy.planner.recorder import new_recorder
from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.splicing import SPLICE
from adaspec.replay.learned import survey
from adaspec.replay.recording import Recording

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Array = NDArray[np.float64]


BATCH = 256
"""Positions that are surveyed together."""


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

    def with_drafts(self, other: Examples) -> Examples:
        """These decisions, with the splices and the evidence of others."""
        return replace(other, decisions=self.decisions)

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


def surveyed(
    recording: Recording, policy: LearnedPolicy, members: NDArray[np.bool_], drafts: bool
) -> Examples:
    """The examples at every position of the marked requests, or those of their drafts alone."""
    requests = np.flatnonzero(members).astype(np.int32)
    size = int((recording.columns.length[requests] - 1).sum())
    behind = size * min(policy.neural_cap, LONGEST_NEURAL) if drafts else 0
    reads = policy.model.reads_evidence
    recorder = new_recorder(BATCH, 0 if drafts else size, behind, behind if reads else 0)
    survey(recording, policy, requests, recorder)
    decided, spliced, drafted = map(int, recorder.filled[0].tolist())
    return Examples(
        sample(recorder.at[:decided], recorder.x[:decided]),
        sample(
            recorder.splice_at[:spliced].copy(),
            recorder.splice_x[:spliced].copy(),
            recorder.splice_length[:spliced].copy(),
        ),
        sample(
            recorder.evidence_at[:drafted],
            recorder.evidence_x[:drafted],
            recorder.evidence_depth[:drafted],
        ),
    )
