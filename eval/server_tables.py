"""The generated tables of full servers."""

from __future__ import annotations

from typing import Any

from figures import SHIPS, is_mixed, report
from table_cells import (
    AT_ONCE,
    OVER_NONE,
    OVER_STATIC,
    OVER_VLLM,
    percent,
    times,
    without_repeats,
)


def main_benchmarks(found: dict[str, Any]) -> list[dict[str, Any]]:
    """For each load, the main benchmark of the policy that ships."""
    main = [names[0] for names in SHIPS.values()]
    return [row for row in found["servers"] if row["report"] in main]


def servers_table(found: dict[str, Any]) -> list[list[str]]:
    """The README's table: the policy that ships, and how far its rounds lie apart."""
    rows = [[AT_ONCE, "rounds", OVER_NONE, "over vLLM's own method", OVER_STATIC]]
    for row in main_benchmarks(found):
        spread = row["speedup_spread"]
        rows.append([
            str(row["concurrency"]),
            str(row["rounds"]),
            times(row["speedup"]) + (f" ({spread[0]:.2f} .. {spread[1]:.2f})" if spread else ""),
            f"{_with_spread(row, 'over_vllm_best')}, {_said(row['vllm_best'])}",
            _with_spread(row, "over_static_best"),
        ])  # fmt: skip
    return rows


def server_table(found: dict[str, Any], key: str) -> list[list[str]]:
    """The table of all benchmarks of one kind."""
    rows = [[AT_ONCE, "report", "rounds", OVER_NONE, OVER_VLLM, OVER_STATIC]]
    for row in found[key]:
        rows.append([
            str(row["concurrency"]),
            f"[{row['report']}](../eval/reports/reference-pair-engine/{row['report']}/report.md)",
            str(row["rounds"]),
            times(row["speedup"]),
            _over(row["over_vllm_best"], row["vllm_best"]),
            _over(row["over_static_best"], row["static_best"]),
        ])  # fmt: skip
    return rows


def latency_table(found: dict[str, Any]) -> list[list[str]]:
    """The table of what users of those servers wait for."""
    gaps = "between pieces of an answer, median and p95"
    rows = [[AT_ONCE, "method", "tokens per second", "first token, median and p95", gaps]]
    for server in main_benchmarks(found):
        named = {
            f"{row['method']} {row['setting']}".strip(): row
            for row in report(f"reference-pair-engine/{server['report']}")["rows"]
            if is_mixed(row)
        }
        shown = ("none", server["vllm_best"], server["static_best"])
        for name, row in named.items():
            if name in shown or row["method"] == "adaspec":
                rows.append([
                    str(server["concurrency"]),
                    "adaspec" if row["method"] == "adaspec" else f"`{name}`",
                    f"{row['tokens_per_s']:.0f}",
                    _milliseconds(row["ttft_s"]),
                    _milliseconds(row["inter_token_s"]),
                ])  # fmt: skip
    return without_repeats(rows)


def _milliseconds(found: dict[str, float]) -> str:
    return f"{1e3 * found['median']:,.0f} and {1e3 * found['p95']:,.0f} ms"


def _with_spread(row: dict[str, Any], key: str) -> str:
    lead, spread = percent(row[key] - 1), row[f"{key}_spread"]
    return f"{lead} ({' .. '.join(percent(each - 1) for each in spread)})" if spread else lead


def _said(method: str) -> str:
    """A method by its name, without its settings."""
    return {"suffix": "suffix decoding", "ngram": "n-gram"}[method.partition(" ")[0]]


def _over(ratio: float | None, opponent: str | None) -> str:
    return "not run" if ratio is None else f"{percent(ratio - 1)} (`{opponent}`)"
