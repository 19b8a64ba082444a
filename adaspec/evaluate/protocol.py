"""`--protocol specdecode-bench`: the public simulator's table, a row per workload and spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adaspec.evaluate.options import Options, Progress
from adaspec.evaluate.selection import Selection
from adaspec.replay.contender import Contender
from adaspec.replay.simulator import proposer_of, simulate
from adaspec.trace.schema import Request


def evaluate_protocol(
    selection: Selection, named: Sequence[Contender], options: Options, progress: Progress
) -> dict[str, Any]:
    """`rows` of a report; only the named policies run, all requests, whatever their length."""
    proposers = [(contender.name, proposer_of(contender)) for contender in named]
    workloads: dict[str, list[Request]] = {}
    for request in selection.requests:
        workloads.setdefault(request.workload, []).append(request)
    rows: list[dict[str, Any]] = []
    total = len(proposers) * len(workloads) * len(options.concurrency)
    for name, proposer in proposers:
        for workload, requests in sorted(workloads.items()):
            for copies in options.concurrency:
                progress("protocol", len(rows), total)
                cell = simulate(requests, proposer, copies, options.seed)
                rows.append(
                    {
                        "workload": workload,
                        "concurrency": copies,
                        "policy": name,
                        "tokens_per_s": cell.tokens_per_s,
                        "speedup": cell.tokens_per_s / cell.plain_tokens_per_s,
                        "ci95": None,
                        "accepted_per_step": None,
                        "drafted_per_step": None,
                        "neural_steps_share": None,
                        "detail": {"unrounded": True},
                    }
                )
    progress("protocol", total, total)
    return {"rows": rows, "headline": []}
