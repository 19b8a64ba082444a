"""The rivals that adapt, at full speed: their compiled formulas in one compiled closed loop."""

from __future__ import annotations

import numpy as np

from adaspec.cost.model import CostModel, Costs, decoding_shape
from adaspec.jit import compiled
from adaspec.policy import adaptive
from adaspec.policy.adaptive import Adaptive, Array, Ints, Rival
from adaspec.replay import closed_loop
from adaspec.replay.closed_loop import Result
from adaspec.replay.recording import Columns, Recording


@compiled
def _run(
    columns: Columns, order: Ints, concurrency: int, rival: Rival, state: Array, costs: Costs
) -> closed_loop.ClosedLoop:
    """The closed loop, run to its end."""
    loop = closed_loop.start(columns, order, concurrency, True)
    ranks = rival.is_budget and columns.confidence.shape[1] >= rival.tiers[0]
    while closed_loop.goes_on(loop):
        context = closed_loop.context_tokens(loop)
        at = columns.offset[loop.request] + loop.position
        confidence = columns.confidence[at if ranks else at[:0]]
        depth = adaptive.forwards_of(rival, state, concurrency)
        drafted = decoding_shape(concurrency, context, 0, depth, True)
        lengths = adaptive.choose(rival, state, drafted, confidence, costs)
        accepted = np.minimum(columns.neural[at], lengths)
        adaptive.learn(rival, state, concurrency, confidence, lengths, accepted)
        left = columns.length[loop.request] - loop.position
        loop.emitted[:] = np.minimum(accepted + 1, left)
        shape = decoding_shape(concurrency, context, lengths.sum(), depth, True)
        closed_loop.finish_step(loop, costs, shape, np.minimum(accepted, left).sum())
    return loop


def run_adaptive(
    recording: Recording, policy: Adaptive, order: Ints, concurrency: int, cost: CostModel, cap: int
) -> Result:
    """One run of the closed loop under a rival that adapts."""
    (rival, state), costs = adaptive.begin(policy.rival, cap), cost.without_deciding().constants()
    loop = _run(recording.columns, order, concurrency, rival, state, costs)
    return closed_loop.result_of(loop)
