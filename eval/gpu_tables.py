"""The tables of what ran on a GPU."""

from __future__ import annotations

from collections.abc import Callable

from figures import report
from table_cells import AT_ONCE, times

from adaspec.cost.builtin import H100_LLAMA_3_1_8B, H100_LLAMA_3_1_8B_PAPER
from adaspec.cost.engine import ASYNC
from adaspec.cost.model import CostModel, Deciding, StepShape

GPU = "gpu-h100"
METHODS = ("none", "eagle3-3", "adaspec-v2")
TOKENS = (1, 64, 192, 512, 513, 2048)


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
    both = [each.under(ASYNC) for each in (H100_LLAMA_3_1_8B_PAPER, H100_LLAMA_3_1_8B)]
    costs = [each.charged_to(Deciding.NOTHING) for each in both]

    def row(
        what: str, factor: float, unit: str, seconds: Callable[[CostModel], float]
    ) -> list[str]:
        return [what, *(f"{factor * seconds(cost):.2f} {unit}" for cost in costs)]

    return [
        ["what takes time", "published constants", "measured on V2"],
        *(
            row(
                f"a step of {n:,} tokens",
                1e3,
                "ms",
                lambda c, n=n: c.step_s(StepShape(1, 0, n - 1)),
            )
            for n in TOKENS
        ),
        row("1,000 tokens of context", 1e9, "us", lambda c: c.context_s),
        row(
            "a forward of the drafter, 1 row",
            1e3,
            "ms",
            lambda c: c.forward_s + c.forward_per_row_s,
        ),
        row("the same, 32 rows", 1e3, "ms", lambda c: c.forward_s + 32 * c.forward_per_row_s),
    ]
