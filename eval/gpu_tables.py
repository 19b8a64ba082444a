"""The tables of what ran on a GPU."""

from __future__ import annotations

from figures import report
from table_cells import AT_ONCE, times

from adaspec.cost.builtin import H100_LLAMA_3_1_8B

GPU = "gpu-h100"
METHODS = ("none", "eagle3-3", "adaspec-v2")
CONSTANTS = {
    "fixed_s": ("a step", 1e3, "ms"),
    "per_token_s": ("a verified token", 1e6, "us"),
    "per_kv_s": ("1,000 tokens of context", 1e9, "us"),
    "draft_fixed_s": ("a forward of the drafter", 1e3, "ms"),
}


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
    """The measured constants beside the builtin ones."""
    measured = report(GPU)["costs"]["v2"]["cost"]
    rows = [["what takes time", "builtin costs", "measured on V2"]]
    for name, (what, factor, unit) in CONSTANTS.items():
        builtin = getattr(H100_LLAMA_3_1_8B, name)
        rows.append([
            what,
            f"{builtin * factor:.2f} {unit}",
            f"{measured[name] * factor:.2f} {unit}",
        ])  # fmt: skip
    return rows
