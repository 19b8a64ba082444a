"""What steps have taught: the running throughput, and by how much predictions are corrected.

Tokens are traded against time at the throughput. Predictions are corrected by what was accepted of
a drafter's tokens over what was expected of them: the traffic may be another than that of training,
and whoever picks the larger of two estimates also picks the larger error. Only what was verified
counts here, so this is what it corrects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, plain_step_s
from adaspec.jit import compiled
from adaspec.policy.planner.state import CORRECTED, NEURAL, NGRAM, RATE_STEPS, State
from adaspec.predict.features import RowFacts

Ints = NDArray[np.int32]

_PRIOR_SPEEDUP = 2.0
_PRIOR_STEPS = 10.0
"""The throughput begins as so many steps at so much more than no speculation would emit."""


@compiled
def context_of(rows: RowFacts) -> int:
    """Known tokens of all rows."""
    return int(rows.prompt_tokens.sum() + rows.position.sum())


@compiled
def rate_of(state: State, costs: Costs, rows: int, context: int) -> float:
    """Tokens per second of the last steps; at first a guess from what no speculation would do."""
    throughput = state.throughput[0]
    plain = rows / plain_step_s(costs, rows, context)
    if throughput.steps == 0:
        return _PRIOR_SPEEDUP * plain
    prior_s = _PRIOR_STEPS * rows / plain
    tokens = throughput.tokens + _PRIOR_SPEEDUP * plain * prior_s
    return tokens / (throughput.seconds + prior_s)


@compiled
def count_step(state: State, tokens: int, seconds: float) -> None:
    """Take a step into the running throughput."""
    throughput = state.throughput[0]
    oldest = state.recent_steps[int(throughput.steps) % RATE_STEPS]
    throughput.tokens += tokens - oldest[0]
    throughput.seconds += seconds - oldest[1]
    oldest[0], oldest[1] = tokens, seconds
    throughput.steps += 1.0


_FADE = 0.999
"""What is kept of a drafter's record at each of its drafts: records age by evidence."""
_IDLE_FADE = 0.999
"""The same in a step in which the drafter drafts nothing, so that one day it is tried again."""
_PRIOR_DRAFTS = 5.0
"""Imagined drafts that were accepted as expected. Drafts and not tokens: a long draft that fails at
its first token says as little of the next as a short one, and a source given up would stay so."""
_MAX_FACTOR = 1.15
_FADED = 1e-6


@compiled
def factor_of(state: State, source: int) -> float:
    """Accepted over expected tokens of a drafter, shrunk to 1."""
    record = state.record[source]
    # After hours without a draft the record has faded to less than a float can divide by.
    if record.expected <= 0 or record.drafts < _FADED:
        return 1.0
    prior = _PRIOR_DRAFTS * record.expected / record.drafts
    return min(_MAX_FACTOR, (record.accepted + prior) / (record.expected + prior))


@compiled
def fill_factors(state: State) -> None:
    """Fill in by what each drafter's curves are corrected in this step."""
    for source in range(CORRECTED):
        state.record[source].factor = factor_of(state, source)


@compiled
def correct(state: State, row: int) -> None:
    """Scale a row's curves by their drafters' factors, but no further than to certainty."""
    for source in range(CORRECTED):
        curve = state.neural[row] if source == NEURAL else state.ngram[row]
        scale, first = state.record[source].factor, curve[1]
        if scale * first > 1.0:
            scale = 1.0 / first
        state.scale[row, source] = scale
        for j in range(1, curve.shape[0]):
            curve[j] *= scale


@compiled
def note_expected(state: State, neural_len: Ints, ngram_len: Ints) -> None:
    """Note what is expected of the chosen lengths, to be compared with what comes."""
    for row in range(neural_len.shape[0]):
        expected, neural, ngram = state.expected[row], state.neural[row], state.ngram[row]
        expected[:] = 0.0
        expected[NEURAL] = neural[1 : neural_len[row] + 1].sum()
        if neural_len[row] == 0:
            expected[NGRAM] = ngram[1 : ngram_len[row] + 1].sum()


@compiled
def update_record(state: State, source: int, expected: float, accepted: float, drafts: int) -> None:
    """Add a step's drafts of a drafter to its record."""
    record = state.record[source]
    fade = _FADE**drafts if drafts > 0 else _IDLE_FADE
    # Compared with what correction had left of it, a record would correct half of what is wrong.
    factor = record.factor
    record.expected = record.expected * fade + (expected / factor if factor > 0 else 0.0)
    record.accepted = record.accepted * fade + accepted
    record.drafts = record.drafts * fade + drafts
