"""The public simulator of *Performance or Illusion?*, reproduced with its faults.

B copies of one request advance together. What is kept on purpose: positions are read one index
early, drafts are never cut at the output's end, each proposer has its own output length, and in
the combined case EAGLE's drafts are charged as if they were n-gram. `docs/evaluate.md`
names the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.builtin import SIMULATOR
from adaspec.errors import EvaluationError
from adaspec.jit import compiled
from adaspec.policy.static import StaticPolicy
from adaspec.replay.oracles import Oracle
from adaspec.replay.player import Contender
from adaspec.trace.schema import Request

Array = NDArray[np.float64]
Longs = NDArray[np.int64]

EAGLE, NGRAM, COMBINED = range(3)

MATCH_PROBABILITY = {"sharegpt": 0.2, "cnn": 0.4, "gsm8k": 0.2, "instructcoder": 0.8}
"""How often, in that simulator, n-gram finds a match where none of its tokens was accepted."""


@dataclass(frozen=True, slots=True)
class Proposer:
    """What the simulator calls proposer and prediction method; `length` None is its ORACLE."""

    kind: int
    length: int | None


@dataclass(frozen=True, slots=True)
class SimulatedCell:
    """One workload at one batch size: mean tokens per second of a proposer, and without one."""

    tokens_per_s: float
    plain_tokens_per_s: float


def proposer_of(contender: Contender) -> Proposer:
    """The simulator's proposer that a spec names; others are refused."""
    if isinstance(contender, Oracle):
        kinds = {"ngram": NGRAM, "neural": EAGLE, "combine": COMBINED}
        if contender.kind in kinds:
            return Proposer(kinds[contender.kind], None)
    elif isinstance(contender, StaticPolicy):
        words = contender.name.split(":")
        rule = contender.rule
        if words[:2] == ["fixed", "neural"]:
            return Proposer(EAGLE, rule.neural_len)
        if words[:2] == ["fixed", "ngram"]:
            if len(words) > 3:
                raise EvaluationError(
                    f"'{contender.name}': the protocol replays the recorded n-gram list, whose "
                    "match lengths are given: leave MIN out"
                )
            return Proposer(NGRAM, rule.ngram_len)
    raise EvaluationError(
        f"the protocol specdecode-bench cannot run '{contender.name}': it knows fixed:neural:K, "
        "fixed:ngram:K and oracle:neural, oracle:ngram, oracle:combine"
    )


@compiled
def _simulate(
    emits: Longs,
    prompt: int,
    total: int,
    copies: int,
    weight: int,
    length: int,
    kind: int,
    probability: float,
    seed: int,
    constants: Array,
) -> float:
    """Mean latency over copies, each standing for `weight` alike; `emits[i]` counts the bonus."""
    fixed, per_token, per_kv, overhead, draft_fixed, draft_per_kv, draft_per_token, share = (
        constants
    )
    np.random.seed(seed)
    prefill = fixed + per_token * weight * copies * prompt + overhead
    current = np.ones(copies, np.int64)
    latency = np.full(copies, prefill)
    taken = np.zeros(copies, np.int64)
    running = copies if total > 1 else 0
    while running > 0:
        tokens = context = 0
        for c in range(copies):
            if current[c] >= total:
                continue
            emitted = emits[current[c] - 1]
            if length == 0:
                taken[c] = emitted
            elif kind == NGRAM and emitted == 1 and np.random.random() >= probability:
                taken[c] = 1
            else:
                taken[c] = length + 1
            tokens += weight * taken[c]
            context += weight * (prompt + current[c])
        verify = fixed + per_token * tokens + per_kv * context
        running = 0
        for c in range(copies):
            if current[c] >= total:
                continue
            if kind == EAGLE:
                draft = draft_fixed + draft_per_kv * context + draft_per_token * taken[c]
            elif kind == NGRAM and taken[c] == 1:
                draft = 0.0
            else:
                draft = share * verify
            latency[c] += verify + draft + overhead
            current[c] += min(emits[current[c] - 1], taken[c])
            running += current[c] < total
    return latency.mean()


@compiled
def _plain(prompt: int, total: int, copies: int, constants: Array) -> float:
    """Latency of plain decoding."""
    fixed, per_token, per_kv, overhead = constants[0], constants[1], constants[2], constants[3]
    latency = fixed + per_token * copies * prompt + overhead
    for current in range(1, total):
        latency += fixed + per_kv * copies * (prompt + current) + per_token * copies + overhead
    return latency


def simulate(
    requests: Sequence[Request], proposer: Proposer, copies: int, seed: int
) -> SimulatedCell:
    """One cell of the simulator's table: all requests of one workload, one after another."""
    row = np.array(astuple(SIMULATOR))
    random = proposer.kind == NGRAM and proposer.length is not None
    probability = _match_probability(requests) if random else 1.0
    speeds, plain = [], []
    for index, request in enumerate(requests):
        emits = _emits(request, proposer.kind)
        total = len(emits)
        if total == 0:
            continue
        prompt = len(request.prompt_tokens)
        latency = _simulate(
            emits,
            prompt,
            total,
            copies if random else 1,
            1 if random else copies,
            proposer.length or 0,
            proposer.kind,
            probability,
            (seed * 1_000_003 + index) % (1 << 32),
            row,
        )
        speeds.append(copies * total / latency)
        plain.append(copies * total / _plain(prompt, total, copies, row))
    if not speeds:
        raise EvaluationError("no request of this workload holds the list that the proposer reads")
    return SimulatedCell(float(np.mean(speeds)), float(np.mean(plain)))


def _match_probability(requests: Sequence[Request]) -> float:
    workload = requests[0].workload
    if workload not in MATCH_PROBABILITY:
        raise EvaluationError(
            f"the public simulator knows no match probability for workload '{workload}', so the "
            f"protocol cannot run fixed:ngram there (known: {', '.join(sorted(MATCH_PROBABILITY))})"
        )
    return MATCH_PROBABILITY[workload]


def _emits(request: Request, kind: int) -> Longs:
    """How many tokens the proposer's list says that a step at each position emits."""
    both = {EAGLE: request.neural_accepted, NGRAM: request.ngram_accepted}
    lists = [counts for proposer, counts in both.items() if kind in (proposer, COMBINED)]
    found = [counts for counts in lists if counts is not None]
    if len(found) < len(lists):
        raise EvaluationError(
            f"request {request.workload}/{request.id} lacks a recorded list of accepted counts; "
            "the protocol needs what 'adaspec import specdecode-bench' stores"
        )
    shortest = min(map(len, found))
    chosen = np.max([counts[:shortest] for counts in found], axis=0)
    # The null at position 0 reads as nothing accepted, as in the simulator's own lists.
    return np.maximum(chosen, 0).astype(np.int64) + 1
