"""The public simulator's table of *Speculative Decoding: Performance or Illusion?*, reproduced.

adaspec import specdecode-bench DATA -o traces
python eval/paper/table.py traces --json

B copies of one request advance together. The simulator's faults are kept: positions are read one
index early, drafts are never cut at the output's end, each proposer has its own output length, and
in the combined case EAGLE's drafts are charged as if they were n-gram.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import AdaspecError, EvaluationError
from adaspec.jit import compiled
from adaspec.trace.reader import open_traces
from adaspec.trace.schema import Request

Longs = NDArray[np.int64]

EAGLE, NGRAM, COMBINED = range(3)
KINDS = {"eagle3": EAGLE, "ngram": NGRAM, "combined": COMBINED}
"""Proposers, as the published table names them."""
BATCH_SIZES = (1, 8, 32, 128)


class Proposer(NamedTuple):
    """What the simulator calls proposer and prediction method; a length of 0 is its ORACLE."""

    kind: int
    length: int


POLICIES = {
    **{f"fixed:ngram:{length}": Proposer(NGRAM, length) for length in (1, 3, 5)},
    **{f"fixed:neural:{length}": Proposer(EAGLE, length) for length in (1, 3, 5)},
    "oracle:ngram": Proposer(NGRAM, 0),
    "oracle:neural": Proposer(EAGLE, 0),
    "oracle:combine": Proposer(COMBINED, 0),
}
MATCH_PROBABILITY = {"sharegpt": 0.2, "cnn": 0.4, "gsm8k": 0.2, "instructcoder": 0.8}
"""How often, in that simulator, n-gram finds a match where none of its tokens was accepted."""

# verify = FIXED_S + PER_TOKEN_S * tokens + PER_KV_S * context_tokens. An EAGLE draft takes
# DRAFT_FIXED_S + DRAFT_PER_KV_S * context_tokens + DRAFT_PER_TOKEN_S * tokens, however long it is,
# and an n-gram draft a share of its verification.
FIXED_S = 5.88590713e-3
PER_TOKEN_S = 2.10103129e-5
PER_KV_S = 3.92645679e-8
OVERHEAD_S = 1.20683946e-3
DRAFT_FIXED_S = 2.13526175e-3
DRAFT_PER_KV_S = 2.37768493e-9
DRAFT_PER_TOKEN_S = 8.41429603e-7
NGRAM_SHARE_OF_VERIFY = 0.005875


@compiled
def _latency(
    emits: Longs,
    prompt: int,
    copies: int,
    weight: int,
    length: int,
    kind: int,
    probability: float,
    seed: int,
) -> float:
    """Mean latency over copies, each standing for `weight` alike; `emits[i]` counts the bonus."""
    np.random.seed(seed)
    total = emits.shape[0]
    prefill = FIXED_S + PER_TOKEN_S * weight * copies * prompt + OVERHEAD_S
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
        verify = FIXED_S + PER_TOKEN_S * tokens + PER_KV_S * context
        running = 0
        for c in range(copies):
            if current[c] >= total:
                continue
            if kind == EAGLE:
                draft = DRAFT_FIXED_S + DRAFT_PER_KV_S * context + DRAFT_PER_TOKEN_S * taken[c]
            elif kind == NGRAM and taken[c] == 1:
                draft = 0.0
            else:
                draft = NGRAM_SHARE_OF_VERIFY * verify
            latency[c] += verify + draft + OVERHEAD_S
            current[c] += min(emits[current[c] - 1], taken[c])
            running += current[c] < total
    return latency.mean()


@compiled
def _plain_latency(prompt: int, total: int, copies: int) -> float:
    """Latency of plain decoding."""
    latency = FIXED_S + PER_TOKEN_S * copies * prompt + OVERHEAD_S
    for current in range(1, total):
        context_s = PER_KV_S * copies * (prompt + current)
        latency += FIXED_S + context_s + PER_TOKEN_S * copies + OVERHEAD_S
    return latency


def speedup(requests: Sequence[Request], proposer: Proposer, copies: int, seed: int) -> float:
    """One cell: the mean tokens per second of these requests over that of plain decoding."""
    kind, length = proposer
    is_random = kind == NGRAM and length > 0
    probability = match_probability(requests[0].workload) if is_random else 1.0
    speeds, plain = [], []
    for index, request in enumerate(requests):
        emits, prompt = emits_of(request, kind), len(request.prompt_tokens)
        total = len(emits)
        if total == 0:
            continue
        # Copies that draw nothing at random are alike: one is enough.
        count, weight = (copies, 1) if is_random else (1, copies)
        own_seed = (seed * 1_000_003 + index) % (1 << 32)
        latency = _latency(emits, prompt, count, weight, length, kind, probability, own_seed)
        speeds.append(copies * total / latency)
        plain.append(copies * total / _plain_latency(prompt, total, copies))
    if not speeds:
        raise EvaluationError("no request of this workload holds the list that the proposer reads")
    return float(np.mean(speeds)) / float(np.mean(plain))


def match_probability(workload: str) -> float:
    """The simulator's own, which it knows of four workloads."""
    if workload not in MATCH_PROBABILITY:
        raise EvaluationError(
            f"the public simulator knows no match probability for workload '{workload}' "
            f"(known: {', '.join(sorted(MATCH_PROBABILITY))})"
        )
    return MATCH_PROBABILITY[workload]


def emits_of(request: Request, kind: int) -> Longs:
    """How many tokens the proposer's list says that a step at each position emits."""
    both = {EAGLE: request.neural_accepted, NGRAM: request.ngram_accepted}
    lists = [counts for proposer, counts in both.items() if kind in (proposer, COMBINED)]
    found = [counts for counts in lists if counts is not None]
    if len(found) < len(lists):
        raise EvaluationError(
            f"request {request.workload}/{request.id} lacks a recorded list of accepted counts: "
            "give what 'adaspec import specdecode-bench' stores"
        )
    shortest = min(map(len, found))
    chosen = np.max([counts[:shortest] for counts in found], axis=0)
    # The null at position 0 reads as nothing accepted, as in the simulator's own lists.
    return np.maximum(chosen, 0).astype(np.int64) + 1


def table(requests: Sequence[Request], seed: int = 0) -> list[dict[str, Any]]:
    """A row per workload, batch size and policy."""
    workloads: dict[str, list[Request]] = {}
    for request in requests:
        workloads.setdefault(request.workload, []).append(request)
    return [
        {
            "workload": workload,
            "batch_size": copies,
            "policy": policy,
            "speedup": speedup(workloads[workload], proposer, copies, seed),
        }
        for workload in sorted(workloads)
        for copies in BATCH_SIZES
        for policy, proposer in POLICIES.items()
    ]


def published_speedups(path: Path) -> dict[tuple[str, int, str], float]:
    """The published table's, by workload, batch size and policy."""
    names = {proposer: name for name, proposer in POLICIES.items()}
    found = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            length = int(row["predict_method"].removeprefix("FIXED_").replace("ORACLE", "0"))
            policy = names[Proposer(KINDS[row["proposer"]], length)]
            found[row["workload"], int(row["batch_size"]), policy] = float(row["speedup"])
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, nargs="+", help="made by import specdecode-bench")
    parser.add_argument("--published", metavar="CSV", type=Path, help="its figures beside these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print a list of rows")
    arguments = parser.parse_args()
    try:
        readers = open_traces(arguments.traces)
        rows = table([each for reader in readers for each in reader.requests()], arguments.seed)
        published = published_speedups(arguments.published) if arguments.published else {}
    except (AdaspecError, OSError) as error:
        print(f"table: {error}", file=sys.stderr)
        return 2
    if published:
        for row in rows:
            row["published"] = published.get((row["workload"], row["batch_size"], row["policy"]))
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    print("\t".join(rows[0]))
    for row in rows:
        cells = (f"{each:.3f}" if isinstance(each, float) else str(each) for each in row.values())
        print("\t".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
