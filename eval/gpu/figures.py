"""The figures of a report, from what rounds have written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from results import SCHEMA, read_json, read_lines

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.cost.model import CostModel, StepShape

NONE, OURS, EAGLE = "none", "adaspec", "eagle3"
Row = dict[str, Any]


def document_of(folder: Path) -> Row:
    """The whole report."""
    files = list(rounds_in(folder))
    engines = {name: cell for file in files for name, cell in file["engines"].items()}
    cells = [cell for file in files for cell in file["cells"]]
    hardware = [cell["hardware"] for cell in engines.values() if "hardware" in cell]
    speeds = rows(cells, cost())
    return {
        "schema": SCHEMA,
        "kind": "gpu",
        "dry_run": any(file["dry_run"] for file in files),
        "machine": {"hardware": hardware[0]} if hardware else None,
        "engines": engines,
        "priced_by": cost().name,
        "throughput": speeds,
        "headline": [
            {"workload": workload, "load": load, **headline_of(here)}
            for (workload, load), here in _by(speeds, "workload", "load").items()
        ],
        "replay": (read_json(folder / "replay.json") or {"rows": []})["rows"],
    }


def rounds_in(folder: Path) -> Iterator[Row]:
    """What each group of engines measured: the engines' facts, and the cells that count."""
    for path in sorted(folder.glob("rounds-*.jsonl")):
        head, *lines = read_lines(path)
        engines = {
            line["key"].removeprefix("engine "): line["cell"]
            for line in lines
            if line["key"].startswith("engine ")
        }
        cells = [line["cell"] for line in lines if line["cell"].get("round")]
        settings = head["settings"]
        yield {
            "engines": engines,
            "cells": cells,
            "plan": settings["plan"],
            "dry_run": settings["dry_run"],
        }


def cost() -> CostModel:
    """The costs that steps are held against, and replays charged."""
    return load_cost(DEFAULT)


def _by(lines: Sequence[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for line in lines:
        groups[tuple(line[name] for name in names)].append(line)
    return dict(sorted(groups.items()))


def rows(cells: Sequence[Row], cost: CostModel) -> list[Row]:
    """A row per workload, load and method: the median over rounds, and each of them."""
    found = []
    for (workload, load, method), group in _by(cells, "workload", "load", "method").items():
        speeds = [cell["tokens_per_s"] for cell in group]
        steps = [step for cell in group for step in steps_of(cell)]
        found.append(
            {
                "workload": workload,
                "load": load,
                "method": method,
                "tokens_per_s": median(speeds),
                "by_round": speeds,
                "tokens_per_row": sum(cell["tokens"] for cell in group)
                / max(sum(step["answers"] for step in steps), 1),
                "steps": len(steps),
                "longest_ms": max((step["ms"] for step in steps), default=None),
                "compiled_in": sum(step["compiled"] > 0 for step in steps),
                "graphs": dict(Counter(step["mode"] for step in steps)),
                "outside": dict(Counter(filter(None, map(cause, steps)))),
                "held": dict(Counter(step["guard_state"] for step in steps if step["guard_state"])),
                "switches": sum(_risen(cell["steps"]["switches"]) for cell in group),
                "forwards": dict(Counter(str(step["forwards"]) for step in steps)),
                "preempted": sum(cell["preempted"] for cell in group),
                "faults": dict(sum((Counter(cell["faults"]) for cell in group), Counter())),
                "step_ms": _medians(steps, cost),
            }
        )
    return found


def steps_of(cell: Row) -> list[Row]:
    """A cell's steps, each by the name of its columns, with the size of the largest graph."""
    columns = cell["steps"]
    largest = cell["largest_graph"]
    return [
        dict(zip(columns, values, strict=True), largest=largest)
        for values in zip(*columns.values(), strict=True)
    ]


def cause(step: Row) -> str | None:
    """Why a step of the target ran outside all CUDA graphs; None where it ran in one."""
    if step["mode"] != "NONE":
        return None
    if not step["largest"]:
        return "there are no graphs"
    if step["rows"] + step["prompt"] > step["largest"]:
        return "prompts are too long"
    if step["tokens"] > step["largest"]:
        return "drafts make it too long"
    return "no graph of its shape"


def _risen(values: Sequence[int]) -> int:
    return values[-1] - values[0] if values else 0


def _medians(steps: Sequence[Row], cost: CostModel) -> list[Row]:
    """Measured and priced milliseconds of steps, by the graph they ran in and forwards.

    What compiles something is left out, and so is what no step follows: its time is another one's.
    """
    usual = [step for step in steps if step["answers"] and not step["compiled"]]
    return [
        {
            "mode": mode,
            "forwards": forwards,
            "steps": len(here),
            "tokens": median(step["tokens"] for step in here),
            "ms": median(step["ms"] for step in here),
            "priced_ms": median(priced_ms(step, cost) for step in here),
        }
        for (mode, forwards), here in _by(usual, "mode", "forwards").items()
    ]


def priced_ms(step: Row, cost: CostModel) -> float:
    """What the costs say of a step; prompt tokens are verified like others."""
    forwards = step["forwards"]
    shape = StepShape(
        rows=step["rows"],
        context_tokens=step["context"],
        drafted=step["drafted"],
        forwards=forwards,
        holds_neural=forwards > 0 or step["head_mode"] is not None,
        prompt_tokens=step["prompt"],
    )
    return 1e3 * cost.step_s(shape)


def headline_of(here: Sequence[Row]) -> Row:
    """adaspec at a load, over the best of no speculation, of EAGLE-3 and of all vLLM's methods.

    With the lowest and the highest ratio of single rounds.
    """
    by_method = {row["method"]: row for row in here}
    vllm = {name: row for name, row in by_method.items() if not name.startswith(OURS)}
    eagles = {name: row for name, row in vllm.items() if name.startswith(EAGLE)}
    nones = {name: row for name, row in vllm.items() if name.startswith(NONE)}
    best = {"none": _best(nones), "eagle3": _best(eagles), "vllm": _best(vllm)}
    over = {
        name: {
            key: None if other is None else _ratio(row, vllm[other]) for key, other in best.items()
        }
        for name, row in by_method.items()
        if name.startswith(OURS)
    }
    return {"best_eagle3": best["eagle3"], "best_vllm": best["vllm"], "over": over}


def _best(found: Mapping[str, Row]) -> str | None:
    return max(found, key=lambda name: found[name]["tokens_per_s"], default=None)


def _ratio(row: Row, other: Row) -> Row:
    """Of medians, and of the rounds that both have."""
    pairs = zip(row["by_round"], other["by_round"], strict=False)
    ratios = [one / two for one, two in pairs]
    ratio = row["tokens_per_s"] / other["tokens_per_s"]
    return {"ratio": ratio, "least": min(ratios), "most": max(ratios)}
