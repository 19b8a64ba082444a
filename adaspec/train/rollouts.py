"""Rollouts: what static rules and learned policies see as they decide."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.recorder import new_recorder
from adaspec.policy.static import StaticRule
from adaspec.replay.learned import run_learned
from adaspec.replay.orders import draw_passes, pools_among
from adaspec.replay.recorded import Film
from adaspec.replay.tape import Tape
from adaspec.train.heads import Examples


def rollout(
    tape: Tape,
    film: Film,
    policy: LearnedPolicy,
    members: NDArray[np.bool_],
    concurrency: int,
    cost: CostModel,
    rng: np.random.Generator,
    rule: StaticRule | None = None,
) -> Examples:
    """One closed loop over the marked requests, every one of which enters."""
    pools = pools_among(tape, members)
    order = draw_passes(pools, concurrency, rng)
    size = int(tape.columns.length[order].sum())
    depths = policy.neural_cap if policy.model.reads_evidence else 0
    recorder = new_recorder(concurrency, size, size * max(depths, 1), size * depths)
    run_learned(
        tape, film, policy, order, concurrency, cost, policy.cap, rule=rule, recorder=recorder
    )
    # A request that entered several times counts once: of its decisions, so large a share is kept.
    share = min(1.0, float(members.sum()) / len(order))
    a, b, c = (
        np.flatnonzero(rng.random(int(filled)) < share) if share < 1 else slice(0, int(filled))
        for filled in recorder.filled[0].tolist()
    )
    return Examples(
        at=recorder.at[a].copy(),
        x=recorder.x[a].copy(),
        weight=np.ones(len(recorder.at[a])),
        splice_at=recorder.splice_at[b].copy(),
        splice_length=recorder.splice_length[b].copy(),
        splice_x=recorder.splice_x[b].copy(),
        evidence_at=recorder.evidence_at[c].copy(),
        evidence_depth=recorder.evidence_depth[c].copy(),
        evidence_x=recorder.evidence_x[c].copy(),
    )
