"""The tables of what ran on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from figures import report
from table_cells import AT_ONCE, joined, times

from adaspec.cost.load import H100_LLAMA_3_1_8B, H100_LLAMA_3_1_8B_PAPER
from adaspec.cost.model import CostModel, StepShape

GPU = "gpu-h100"
METHODS = ("none", "eagle3-3", "adaspec-v2")
TOKENS = (1, 64, 192, 512, 513, 2048)
GPU_REQUESTS = "reference-pair-h100-async"
"""The report of replays whose recordings were asked for there."""


def gpu_speeds() -> dict[int, tuple[float, float]]:
    """By load, the speed of adaspec and of EAGLE-3 on the GPU over no speculation."""
    of = {(row["method"], row["load"]): row["speedup"] for row in report(GPU)["throughput"]}
    _, eagle, adaspec = METHODS
    return {load: (of[adaspec, load], of[eagle, load]) for method, load in of if method == adaspec}


def gpu_row() -> list[str]:
    """What was measured, and what replays promised, of all loads in a row of the README's table."""
    found = sorted(report(GPU)["replay"], key=lambda row: row["load"])
    plain, eagle, ours = ([row for row in found if row["method"] == method] for method in METHODS)

    def over(others: list[dict[str, Any]], key: str) -> list[float]:
        return [row[key] / other[key] for row, other in zip(ours, others, strict=True)]

    def with_replay(others: list[dict[str, Any]], say: Callable[[float], str]) -> str:
        measured, replayed = (
            joined([say(each) for each in over(others, key)])
            for key in ("tokens_per_s", "replayed_tokens_per_s")
        )
        return f"{measured} (its replay: {replayed})"

    return [
        "[Measured on an H100: an older policy, an 8B model of random weights that accepts what "
        "was recorded](docs/results.md#was-it-measured-on-a-gpu)",
        joined([str(row["load"]) for row in plain]),
        with_replay(plain, times),
        f"over EAGLE-3 alone: {with_replay(eagle, _lead)}",
        "",
        "",
        "",
    ]


def _lead(ratio: float) -> str:
    return f"{round(100 * (ratio - 1)):+d}%"


def gpu_table() -> list[list[str]]:
    """Tokens per second on the GPU, and what the evaluator says of the same requests."""
    found = report(GPU)
    loads = sorted({row["load"] for row in found["replay"]})
    of = {(row["method"], row["load"]): row for row in found["replay"]}
    heads = [AT_ONCE, "no speculation, tokens per second", "EAGLE-3, 3 tokens", "adaspec"]
    rows = [[*heads, "replayed, in the same order: EAGLE-3", "adaspec"]]
    for load in loads:
        cells = [of[method, load] for method in METHODS]
        plain, *others = [cell["tokens_per_s"] for cell in cells]
        replayed_plain, *replayed = [cell["replayed_tokens_per_s"] for cell in cells]
        rows.append([
            str(load),
            f"{plain:.0f} ({plain / replayed_plain:.0%} of the replay)",
            *(times(each / plain) for each in others),
            *(times(each / replayed_plain) for each in replayed),
        ])  # fmt: skip
    return rows


def gpu_costs_table() -> list[list[str]]:
    """What steps take by the published constants, and as measured on V2."""
    costs = [each.without_deciding() for each in (H100_LLAMA_3_1_8B_PAPER, H100_LLAMA_3_1_8B)]
    found = [["what takes time", "published constants", "measured on V2"]]

    def add(what: str, factor: float, unit: str, seconds: Callable[[CostModel], float]) -> None:
        found.append([what, *(f"{factor * seconds(cost):.2f} {unit}" for cost in costs)])

    for n in TOKENS:
        shape = StepShape(1, 0, n - 1)
        add(f"a step of {n:,} tokens", 1e3, "ms", lambda cost, shape=shape: cost.step_s(shape))
    add("1,000 tokens of context", 1e9, "us", lambda cost: cost.context_s)
    for n in (1, 32):
        rows = "a row" if n == 1 else f"{n} rows"
        what = f"a forward of the drafter, {rows}"
        add(what, 1e3, "ms", lambda cost, n=n: cost.forward_s + n * cost.forward_per_row_s)
    return found
