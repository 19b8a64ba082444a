"""The figures of a report, from what stages have written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from results import SCHEMA, cells_in, read_json

NONE, OURS, EAGLE = "none", "adaspec", "eagle3"
UNDONE = "not run"
NUMBERS = (
    "tokens_per_s",
    "tokens_per_row",
    "steps",
    "longest_step_s",
    "drafted",
    "accepted",
    "verifications",
)


def document_of(folder: Path, planned: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report."""
    plan = planned["stages"]
    stages = [_stage(folder, planned) for planned in plan.values()]
    machines = [each["machine"] for each in stages if each["machine"]]
    runs = list(_runs(folder, plan))
    speeds = {
        part: rows(run for run in runs if run["part"] == part) for part in ("throughput", "pair")
    }
    return {
        "schema": SCHEMA,
        "kind": "gpu",
        "dry_run": planned["dry_run"],
        "machine": machines[0] if machines else None,
        "stages": [{key: each[key] for key in STAGE_KEYS} for each in stages],
        "lossless": [
            {"stage": each["stage"], **each["result"]}
            for each in stages
            if each["part"] == "lossless" and "equal" in (each["result"] or {})
        ],
        "costs": {
            each["stage"].removeprefix("costs-"): each["result"]
            for each in stages
            if "cost" in (each["result"] or {}) and each["part"] == "costs"
        },
        "kernels": _cells(folder, plan, "costs-kernels"),
        **speeds,
        "headline": [
            {"part": part, "load": load, **headline_of([r for r in each if r["load"] == load])}
            for part, each in speeds.items()
            for load in sorted({row["load"] for row in each})
        ],
        "price_of_forcing": price_of_forcing(runs),
        "replay": (read_json(folder / "replay.json") or {"rows": []})["rows"],
        "runs": runs,
    }


STAGE_KEYS = ("stage", "part", "status", "why", "seconds", "log")


def _stage(folder: Path, planned: Mapping[str, Any]) -> dict[str, Any]:
    """A stage with what came of it."""
    found = read_json(folder / "stages" / f"{planned['name']}.json") or {}
    base = {"stage": planned["name"], "part": planned["part"], "status": UNDONE}
    return {**dict.fromkeys((*STAGE_KEYS, "machine", "result")), **base, **found}


def _cells(folder: Path, plan: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    if name not in plan:
        return []
    return cells_in(folder / "cells" / f"{name}.jsonl", plan[name]["settings"])


def _runs(folder: Path, plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every measured run of a method at a load, those of stages that failed later included."""
    for name, planned in plan.items():
        if planned["kind"] != "throughput":
            continue
        settings = planned["settings"]
        facts = {key: settings[key] for key in ("method", "runner", "round")}
        for cell in _cells(folder, plan, name):
            yield {"part": planned["part"], **facts, **cell}


def rows(runs: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per load and method: medians over the rounds, and the speedup over none's."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        if run["forced"]:
            groups[run["load"], run["method"]].append(run)
    return [_row(load, method, group, groups) for (load, method), group in sorted(groups.items())]


def _row(
    load: int,
    method: str,
    group: list[dict[str, Any]],
    groups: Mapping[tuple[int, str], list[dict[str, Any]]],
) -> dict[str, Any]:
    none = groups.get((load, NONE), [])
    by_round = {run["round"]: run for run in none}
    speed = median(run["tokens_per_s"] for run in group)
    paired = [
        run["tokens_per_s"] / by_round[run["round"]]["tokens_per_s"]
        for run in group
        if run["round"] in by_round
    ]
    graphs: dict[str, dict[str, int]] = {}
    for run in group:
        for part, modes in run["graphs"].items():
            counts = graphs.setdefault(part, {})
            for mode, count in modes.items():
                counts[mode] = counts.get(mode, 0) + count
    return {
        "load": load,
        "method": method,
        "runner": group[0]["runner"],
        "rounds": len(group),
        **{name: median(run[name] for run in group) for name in NUMBERS},
        "speedup": speed / median(run["tokens_per_s"] for run in none) if none else None,
        "speedup_by_round": paired,
        "outputs_as_none": _share_as_none(group, by_round),
        "graphs": graphs,
    }


def _share_as_none(group: list[dict[str, Any]], none: Mapping[int, dict[str, Any]]) -> float | None:
    """The share of outputs that are those of no speculation, of the requests that both ended."""
    same = []
    for run in group:
        if run["round"] in none:
            expected = dict(none[run["round"]]["outputs"])
            same += [expected[at] == digest for at, digest in run["outputs"] if at in expected]
    return sum(same) / len(same) if same else None


def headline_of(here: list[dict[str, Any]]) -> dict[str, Any]:
    """adaspec at a load, over no speculation, the best EAGLE-3 and the best of vLLM's methods."""
    speeds = {row["method"]: row["tokens_per_s"] for row in here}
    vllm = {name: speed for name, speed in speeds.items() if not name.startswith(OURS)}
    eagles = {name: speed for name, speed in vllm.items() if name.startswith(EAGLE)}
    best = {
        "eagle3": max(eagles, key=eagles.__getitem__, default=None),
        "vllm": max(vllm, key=vllm.__getitem__, default=None),
    }
    over = {
        name: {
            "none": speed / speeds[NONE] if NONE in speeds else None,
            **{key: speed / speeds[other] if other else None for key, other in best.items()},
        }
        for name, speed in speeds.items()
        if name.startswith(OURS)
    }
    return {"best_eagle3": best["eagle3"], "best_vllm": best["vllm"], "over": over}


def price_of_forcing(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Load -> the time of no speculation with forced outputs, over that without forcing."""
    speeds: dict[tuple[int, bool], list[float]] = defaultdict(list)
    for run in runs:
        if run["method"] == NONE and run["part"] == "throughput":
            speeds[run["load"], run["forced"]].append(run["tokens_per_s"])
    return {
        str(load): median(speeds[load, False]) / median(speeds[load, True])
        for load in sorted({load for load, _ in speeds})
        if speeds[load, True] and speeds[load, False]
    }


def plain_steps(costs: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """(way, batch) -> the median seconds of a step that drafts nothing, over contexts."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for way, profile in costs.items():
        for step in profile["steps"]:
            if step["source"] == "none":
                found[way, step["batch"]].append(step["step_s"])
    return {key: median(values) for key, values in found.items()}


def steps_by_forwards(profile: Mapping[str, Any]) -> dict[tuple[int, int], float]:
    """(batch, forwards) -> the median seconds of steps in which the drafter ran so often."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step in profile["steps"]:
        found[step["batch"], step["forwards"]].append(step["step_s"])
    return {key: median(values) for key, values in found.items()}
