"""The figures of a report, from what rounds have written."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from results import SCHEMA, read_lines

from adaspec.cost.load import DEFAULT, cost_from_document, load_cost
from adaspec.cost.model import CostModel, StepShape

NONE, OURS, EAGLE = "none", "adaspec", "eagle3"
Row = dict[str, Any]


def document_of(folder: Path, replay: Sequence[Row] = ()) -> Row:
    """The whole report."""
    head, engines, cells = measured_in(folder)
    cost = costs_of(engines)
    speeds = rows([cell for cell in cells if cell["stage"] == "round" and cell["round"]], cost)
    lossless = folder / "lossless.json"
    return {
        "schema": SCHEMA,
        "kind": "gpu",
        "dry_run": head["dry_run"],
        "engines": engines,
        "priced_by": cost.name,
        "throughput": speeds,
        "headline": [
            {"load": load, **headline_of(here)} for load, here in by(speeds, "load").items()
        ],
        "rejected": list(rejected(cells)),
        "bounded": list(bounded(cells)),
        "profiles": [
            {"load": cell["load"], "method": cell["method"], **cell["profile"]}
            for cell in cells
            if "profile" in cell
        ],
        "lossless": json.loads(lossless.read_text()) if lossless.exists() else None,
        "replay": list(replay),
    }


def measured_in(folder: Path) -> tuple[Row, dict[str, Row], list[Row]]:
    """What was set; what became of each engine, by its name; and all cells.

    Calls may be several: a file each.
    """
    files = [list(read_lines(path)) for path in sorted(folder.glob("rounds*.jsonl"))]
    lines = [line for _, *lines in files for line in lines]
    engines = dict[str, Row]()
    for line in lines:
        if "engine" in line:
            facts = {key: value for key, value in line.items() if key != "engine"}
            engines[line["engine"]] = engines.get(line["engine"], {}) | facts
    return files[0][0], engines, [line for line in lines if "method" in line]


def costs_of(engines: Mapping[str, Row]) -> CostModel:
    """What adaspec measured as it started, or else the builtin costs."""
    found = [engine["cost"] for engine in engines.values() if "cost" in engine]
    return cost_from_document(found[0], "costs") if found else load_cost(DEFAULT)


def by(lines: Sequence[Row], *names: str) -> dict[Any, list[Row]]:
    """Lines by what they have under these names, in order."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for line in lines:
        groups[tuple(line[name] for name in names) if names[1:] else line[names[0]]].append(line)
    return dict(sorted(groups.items()))


def rejected(cells: Sequence[Row]) -> Iterator[Row]:
    """By load, what adaspec keeps of the speed of no speculation where no draft is accepted."""
    for load, here in by([cell for cell in cells if cell["stage"] == "rejected"], "load").items():
        speeds = {cell["method"]: cell["tokens_per_s"] for cell in here}
        ours = [cell["steps"] for cell in here if cell["method"] == OURS]
        if ours and NONE in speeds:
            held = Counter(str(state) for state in ours[0]["guard_state"])
            drafted = sum(ours[0]["drafted"]) / sum(ours[0]["rows"])
            share = speeds[OURS] / speeds[NONE]
            yield {"load": load, "share": share, "held": dict(held), "drafted_per_row": drafted}


def bounded(cells: Sequence[Row]) -> Iterator[Row]:
    """By load, steps of adaspec without and with a bound, in requests of one order."""
    plain = {
        cell["load"]: cell
        for cell in cells
        if (cell["method"], cell["stage"], cell["round"]) == (OURS, "round", 1)
    }
    for cell in cells:
        if cell["stage"] == "bounded" and cell["load"] in plain:
            before = plain[cell["load"]]
            yield {
                "load": cell["load"],
                "bound_ms": cell["bound_ms"],
                "beyond": [_beyond(each["steps"], cell["bound_ms"]) for each in (before, cell)],
                "tokens_per_s": [each["tokens_per_s"] for each in (before, cell)],
            }


def _beyond(steps: Row, bound_ms: float) -> float:
    """The share of steps that take longer, of those that read no prompt."""
    times = [ms for ms, read in zip(steps["ms"], steps["prompt"], strict=True) if not read]
    return sum(ms > bound_ms for ms in times) / max(len(times), 1)


def rows(cells: Sequence[Row], cost: CostModel) -> list[Row]:
    """A row per load and method: the median over rounds, and each of them."""
    found = []
    for (load, method), group in by(cells, "load", "method").items():
        speeds = [cell["tokens_per_s"] for cell in group]
        steps = [step for cell in group for step in steps_of(cell)]
        found.append(
            {
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
        for (mode, forwards), here in by(usual, "mode", "forwards").items()
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
