"""The table of the policy for any model, judged across models."""

from __future__ import annotations

from collections.abc import Iterator

from figures import is_mixed, report
from table_cells import AT_ONCE, OVER_NONE, OVER_STATIC, OVER_VLLM, percent, times, without_repeats

JUDGED = {
    "general-on-llama-3.1-8b": (
        "Llama-3.1-8B-Instruct",
        {
            "general-of-reference-pair": "the other set alone",
            "general": "both sets",
            "llama-3.1-8b-instruct-h100": "this set, with its tokens",
        },
    ),
    "general-on-reference-pair": (
        "SmolLM2-135M-Instruct",
        {
            "general-of-llama": "the other set alone",
            "general": "both sets",
            "reference-pair-h100": "this set, with its tokens",
        },
    ),
}
"""Report -> the recordings that it judges on, and its policies -> what they were trained on."""
DEFAULTS = {
    "fixed:ngram-vllm:5:4:4": "over n-gram as vLLM's documentation sets it",
    "fixed:neural:3": "over EAGLE with 3 tokens",
}


def general_table() -> list[list[str]]:
    """What policies that do not know a model gain there, beside those that do."""
    heads = ["judged on", "trained on", AT_ONCE, OVER_NONE, OVER_VLLM, *DEFAULTS.values()]
    return without_repeats([[*heads, OVER_STATIC], *_rows()])


def _rows() -> Iterator[list[str]]:
    for name, (models, policies) in JUDGED.items():
        found = report(name)
        speeds = {
            (row["policy"], row["concurrency"]): row["speedup"]
            for row in filter(is_mixed, found["rows"])
        }
        leads = {
            (row["policy"], row["concurrency"]): row for row in filter(is_mixed, found["headline"])
        }
        loads = sorted({load for _, load in leads})
        for policy, trained_on in policies.items():
            for load in loads:
                lead, speed = leads[policy, load], speeds[policy, load]
                yield [
                    f"[{models}](../eval/reports/{name}/report.json)",
                    trained_on,
                    str(load),
                    times(speed),
                    percent(lead["lift_over_vllm_best"]),
                    *(percent(speed / speeds[each, load] - 1) for each in DEFAULTS),
                    percent(lead["lift_over_static_best"]),
                ]
