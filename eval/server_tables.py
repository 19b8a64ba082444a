"""The generated table of whole servers, from eval/reports/servers."""

from __future__ import annotations

from typing import Any

from figures import report
from table_cells import AT_ONCE, OVER_NONE, share, times, without_repeats

NAMES = {"none": "no speculation", "ngram": "n-gram", "eagle3": "EAGLE-3", "adaspec": "adaspec"}


def servers_table() -> list[list[str]]:
    """Every method at every load, in the report's order."""
    heads = [AT_ONCE, "method", "output tokens per second, by round", OVER_NONE]
    heads += ["drafted tokens that were accepted", "first token, median and p95"]
    rows = [[*heads, "between pieces of an answer, median and p95"]]
    for row in report("servers")["rows"]:
        speeds = " / ".join(f"{speed:.0f}" for speed in row["output_tokens_per_s_by_round"])
        rows.append([
            str(row["concurrency"]),
            NAMES.get(row["method"], row["method"]),
            speeds,
            "" if row["method"] == "none" else _over_none(row),
            share(row["acceptance_rate"]),
            _milliseconds(row, "ttft"),
            _milliseconds(row, "itl"),
        ])  # fmt: skip
    return without_repeats(rows)


def _over_none(row: dict[str, Any]) -> str:
    """The speed-up with its interval over rounds."""
    interval = row["over_none_ci95"]
    ends = "" if interval is None else f" ({interval[0]:.2f} .. {interval[1]:.2f})"
    return times(row["over_none"]) + ends


def _milliseconds(row: dict[str, Any], figure: str) -> str:
    return f"{row[f'median_{figure}_ms']:,.0f} and {row[f'p95_{figure}_ms']:,.0f} ms"
