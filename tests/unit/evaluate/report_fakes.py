"""A report with the shape of a real one, seeded."""

from __future__ import annotations

from typing import Any

import numpy as np

WORKLOADS = ("cnn", "gsm8k", "instructcoder", "sharegpt")
CONCURRENCIES = (1, 8, 32, 128)
PLANTED = "</script><script>window.planted=1</script><img src=x onerror=window.planted=2>"

_SPEEDUPS = {
    "none": (1.0, 1.0, 1.0, 1.0),
    "fixed:best": (1.80, 1.74, 1.58, 1.33),
    "hybrid:best": (2.09, 1.92, 1.64, 1.34),
    "adaptive:best": (1.85, 1.78, 1.60, 1.36),
    "static:one": (2.14, 2.04, 1.69, 1.29),
    "static:best": (2.26, 2.06, 1.70, 1.38),
    "oracle:combine": (2.83, 2.17, 1.78, 1.56),
    "oracle:plan-splice": (3.12, 2.62, 2.37, 2.04),
}
WON = "hybrid-splice:4:48:2:2:5"
_SPECS = {
    "fixed:best": ("fixed:neural:3", "fixed:neural:3", "fixed:neural:3", "fixed:neural:2"),
    "static:best": (WON, *["hybrid-splice:8:12:2:4:3"] * 3),
}
_LIFTS = (0.072, 0.064, 0.07, 0.094)


def report(
    policies: tuple[str, ...] = ("mine",),
    workloads: tuple[str, ...] = WORKLOADS,
    concurrencies: tuple[int, ...] = CONCURRENCIES,
) -> dict[str, Any]:
    """What `adaspec eval` finds of these policies."""
    rng = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    headline: list[dict[str, Any]] = []
    for workload in ("all", *workloads):
        hard = 1.0 if workload == "all" else rng.uniform(0.6, 1.5)
        for concurrency in concurrencies:
            at = min(int(np.log2(concurrency) / 2), 3)
            speeds = {name: 1 + (by[at] - 1) * hard for name, by in _SPEEDUPS.items()}
            for index, name in enumerate(policies):
                lift = _LIFTS[at] - 0.03 * index + rng.normal(0, 0.01)
                speeds[name] = speeds["static:best"] * (1 + lift)
                headline.append(_headline(workload, concurrency, name, speeds))
            rows += [_row(workload, concurrency, name, by, at) for name, by in speeds.items()]
    return {
        "schema": 1,
        "cost": "h100-llama-3.1-8b",
        "traces": {
            "sources": ["traces/specdecode-bench"],
            "target": "meta-llama/Llama-3.1-8B-Instruct",
            "drafter": "EAGLE-3",
            "requests": dict(zip(workloads, (67, 118, 282, 47), strict=False)),
            "left_out": {
                name: {"unpaired": 90 + i, "of 2,048 output tokens or more": i}
                for i, name in enumerate(workloads)
            },
        },
        "policies": list(policies),
        "seed": 0,
        "orders": 3,
        "resamples": 40,
        "cap": 48,
        "command": "adaspec eval traces/specdecode-bench --policy policies/mine -o reports/mine",
        "rows": rows,
        "headline": headline,
    }


def planted_report() -> dict[str, Any]:
    """A report with markup planted in every name that it shows."""
    made = report((f"mine{PLANTED}", "hybrid"), ("edits", f"talk{PLANTED}"), (1, 4))
    names = ("target", "drafter")
    made["traces"] |= {"sources": [PLANTED], **dict.fromkeys(names, PLANTED)}
    return made | {"cost": PLANTED, "command": f"adaspec eval {PLANTED}"}


def _row(workload: str, concurrency: int, name: str, speed: float, at: int) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "latency_s": {"median": 0.0072 * concurrency**0.2 / speed, "p95": 0.011 / speed}
    }
    if name in _SPECS:
        detail["spec"] = _SPECS[name][at]
        detail["edge"] = ["KN"] if _SPECS[name][at] == WON else []
    known = name.startswith("oracle:") or name == "none"
    return {
        "workload": workload,
        "concurrency": concurrency,
        "policy": name,
        "tokens_per_s": 139.9 * concurrency**0.87 * speed,
        "speedup": speed,
        "ci95": None if known else [speed * 0.985, speed * 1.017],
        "accepted_per_step": 1.7 * (speed - 1),
        "drafted_per_step": 3.1 * (speed - 1),
        "neural_steps_share": 0.0 if name == "none" else 0.82,
        "detail": detail,
    }


def _headline(
    workload: str, concurrency: int, name: str, speeds: dict[str, float]
) -> dict[str, Any]:
    speed, fixed = speeds[name], speeds["fixed:best"]
    rivals = ("static:best", "static:one", "adaptive:best", "hybrid:best", "fixed:best")
    lifts = {f"lift_over_{each.replace(':', '_')}": speed / speeds[each] - 1 for each in rivals}
    lift = lifts["lift_over_static_best"]
    return {
        "workload": workload,
        "concurrency": concurrency,
        "policy": name,
        **lifts,
        "lift_ci95": [lift - 0.018, lift + 0.016],
        "lift_over_static_tuned": None,
        "gap_closed": (speed - fixed) / (speeds["oracle:plan-splice"] - fixed),
        "gap_closed_combine": (speed - fixed) / (speeds["oracle:combine"] - fixed),
        "worst_workload_lift": 0.013 if workload == "all" else None,
        "decide_share_of_step": None,
    }
