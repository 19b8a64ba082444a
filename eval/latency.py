"""What users wait for, what a bound costs, and traffic that varies: replays of two sets.

    python eval/latency.py -o eval/reports/latency --public ../shared/traces/specdecode-bench

The policies are shipped ones, on requests that they never saw. A file of arrivals is made like
those that are public, of gaps from a gamma distribution: its bursts are short and steep.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adaspec.api import evaluate_policies, load_policy
from adaspec.cost import ASYNC
from adaspec.cost.load import H100_LLAMA_3_1_8B as COST
from adaspec.evaluate.cell_result import LATENCIES, measure
from adaspec.evaluate.options import Options
from adaspec.evaluate.selection import Wanted, select
from adaspec.evaluate.traffic import draw_orders
from adaspec.policy.static import parse_policy
from adaspec.replay.loop import gap_seconds
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording
from adaspec.trace.importers import import_trace

CHECKOUT = Path(__file__).resolve().parents[1]
PAIR = CHECKOUT / "eval" / "traces" / "reference-pair"
SETS = {"reference-pair": "general", "llama-3.1-8b": "llama-3.1-8b-instruct-h100"}
"""By set of recordings, the policy."""
BOUNDS = (1.1, 1.25, 1.5, 2.0)
"""In plain steps: the median gap without speculation at that load."""
BOUNDED_LOADS = (8, 32)
ARRIVALS = ("poisson:8", "poisson:20", "bursts:2:40:10", "gamma gaps of 10 a second")
GOALS = {"slo_ttft_ms": 1000.0, "slo_tpot_ms": 5.0}
ORDERS, RESAMPLES, SEED, CAP = 3, 20, 0, 48


def bounded(traces: Path, name: str) -> Iterator[dict[str, Any]]:
    """What bounds cost a policy."""
    policy, recording = load_policy(name), player_of(traces, name).recording
    for load in BOUNDED_LOADS:
        orders = draw_orders(recording, None, load, SEED, ORDERS)

        def played(contender: Any, longest_s: float | None = None) -> Any:
            player = Player(recording, COST, CAP, ASYNC, longest_s=longest_s)
            return [player.play(contender, order, load) for order in orders]  # noqa: B023

        def share_beyond(runs: Any, seconds: float) -> float:
            gaps = sum(run.gaps for run in runs)
            return float(gaps[gap_seconds() > 1.01 * seconds].sum() / gaps.sum())

        none = measure(played(parse_policy("none")), Options())
        plain_s = float(none.latencies[LATENCIES.index("itl_s"), 0])
        for bound in (None, *BOUNDS):
            longest_s = None if bound is None else bound * plain_s
            runs = played(policy, longest_s)
            found = measure(runs, Options())
            yield {
                "concurrency": load,
                "bound": bound,
                "bound_ms": None if longest_s is None else 1e3 * longest_s,
                "speedup": found.tokens_per_s / none.tokens_per_s,
                "tpot_p50_ms": 1e3 * found.latencies[LATENCIES.index("tpot_s"), 0],
                "itl_ms": (1e3 * found.latencies[LATENCIES.index("itl_s")]).tolist(),
                "beyond": None if longest_s is None else share_beyond(runs, longest_s),
                "beyond_without": None
                if longest_s is None
                else share_beyond(played(parse_policy("none")), longest_s),
            }


def beside_vllm(traces: Path, name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A policy by load beside the best of vLLM's: its time per token at the throughput of that, and
    what it delivers under a bound equal to that one's p95 gap."""
    player = player_of(traces, name)
    ours, theirs = (
        {row["concurrency"]: row for row in rows if row["policy"] == each}
        for each in (name, "vllm:best")
    )
    speeds = [row["tokens_per_s"] for row in ours.values()]
    taken_s = [row["latencies"]["tpot_s"]["p50"] for row in ours.values()]
    found = []
    for load, row in theirs.items():
        tpot_s, gap_s = row["latencies"]["tpot_s"]["p50"], row["latencies"]["itl_s"]["p95"]
        bound = Player(player.recording, COST, CAP, ASYNC, longest_s=gap_s)
        orders = draw_orders(player.recording, None, load, SEED, ORDERS)
        runs = [bound.play(load_policy(name), order, load) for order in orders]
        under = measure(runs, Options())
        found.append({
            "concurrency": load,
            "less_tpot": 1 - float(np.interp(row["tokens_per_s"], speeds, taken_s)) / tpot_s,
            "longer_p95_gap": under.latencies[LATENCIES.index("itl_s"), 1] / gap_s - 1,
            "lift_under_bound": under.tokens_per_s / row["tokens_per_s"] - 1,
        })  # fmt: skip
    return found


def player_of(traces: Path, name: str) -> Player:
    """What replays a policy on requests that it never saw."""
    policy = load_policy(name)
    chosen = select([traces], Wanted(seen=frozenset(policy.manifest.training_requests)))
    recording = build_recording(chosen.requests, chosen.neural_cap).with_prefill()
    return Player(recording, COST, CAP, ASYNC)


def summary(sets: dict[str, Any]) -> dict[str, float]:
    """The figures that documents name."""
    beside = [row for each in sets.values() for row in each["beside_vllm"]]
    more = [row for row in beside if row["concurrency"] > 1]
    costs = []
    for each in sets.values():
        free = {row["concurrency"]: row["speedup"] for row in each["bounds"] if not row["bound"]}
        costs += [
            1 - row["speedup"] / free[row["concurrency"]]
            for row in each["bounds"]
            if row["bound"] == 1.25
        ]
    return {
        "least_less_tpot": min(row["less_tpot"] for row in beside),
        "most_less_tpot": max(row["less_tpot"] for row in beside),
        "longest_p95_gap": max(row["longer_p95_gap"] for row in more),
        "least_lift_under_bound": min(row["lift_under_bound"] for row in more),
        "most_lift_under_bound": max(row["lift_under_bound"] for row in more),
        "most_lost_to_bound": max(costs),
    }


def arrivals_of(kind: str, folder: Path) -> str:
    """The arrivals of a kind, as `adaspec eval` takes them."""
    if kind.partition(":")[0] in ("poisson", "bursts"):
        return kind
    rng = np.random.default_rng(SEED)
    gaps = rng.gamma(0.2, 0.5, 20_000)  # of 0.1 seconds on average, 2.2 times as much apart
    path = folder / "gamma.txt"
    path.write_text("\n".join(f"{each:.4f}" for each in gaps.cumsum()))
    return str(path)


def main() -> None:
    """Replay both sets; write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--public", type=Path, required=True, help="the public recordings")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    began, found = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as work:
        imported = Path(work) / "llama-3.1-8b"
        import_trace("specdecode-bench", [options.public], imported)
        for traces, (name, policy) in zip((PAIR, imported), SETS.items(), strict=True):
            how = {"orders": ORDERS, "seed": SEED, "jobs": 1}
            closed = evaluate_policies([traces], [policy], resamples=0, **how)
            rows = [row for row in closed.rows if row["workload"] == "all"]
            found[name] = {
                "policy": policy,
                "rows": rows,
                "bounds": list(bounded(traces, policy)),
                "beside_vllm": beside_vllm(traces, policy, rows),
                "traffic": {},
            }
            print(name, f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            for kind in ARRIVALS:
                spec = arrivals_of(kind, Path(work))
                goal = GOALS | how
                opened = evaluate_policies(
                    [traces], [policy], arrivals=spec, resamples=RESAMPLES, **goal
                )
                found[name]["traffic"][kind] = {
                    "rows": [row for row in opened.rows if row["workload"] == "all"],
                    "headline": [each for each in opened.headline if each["workload"] == "all"],
                }
                print(name, kind, f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    document = {
        "goals": GOALS,
        "cost": COST.name,
        "orders": ORDERS,
        "resamples": RESAMPLES,
        "seed": SEED,
        "sets": found,
        "summary": summary(found),
        "command": shlex.join(["python", "eval/latency.py", *sys.argv[1:]]),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
