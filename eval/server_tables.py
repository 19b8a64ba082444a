"""The generated tables of whole servers, from eval/reports/servers."""

from __future__ import annotations

from typing import Any

from figures import report
from table_cells import AT_ONCE, OVER_NONE, OVER_STATIC, OVER_VLLM, percent, times, without_repeats

VLLM_METHODS = ("none", "ngram", "neural", "suffix", "batch-table")
STATIC_METHODS = ("hybrid-splice",)
GIVEN_UP = "ships-1-begun"
Row = dict[str, Any]


def benchmarks() -> list[Row]:
    """Every benchmark, in the report's order."""
    found: list[Row] = report("servers")["benchmarks"]
    return found


def of_the_policy_that_ships() -> list[Row]:
    """For each load, the benchmark of the policy that ships."""
    return [
        each for each in benchmarks() if each["group"] == "ships" and each["benchmark"] != GIVEN_UP
    ]


def servers_table() -> list[list[str]]:
    """The policy that ships in whole servers, and how far its rounds lie apart."""
    rows = [[AT_ONCE, "rounds", OVER_NONE, "over vLLM's own method", OVER_STATIC]]
    for each in of_the_policy_that_ships():
        vllm, static = best(each, VLLM_METHODS), best(each, STATIC_METHODS)
        rows.append([
            str(each["concurrency"]),
            str(each["rounds"]),
            over_none(each),
            f"{_lead(vllm)}, {_said(vllm)}",
            _lead(static),
        ])  # fmt: skip
    return rows


def all_servers_table() -> list[list[str]]:
    """Every benchmark, those that went badly included."""
    rows = [[AT_ONCE, "what ran", "rounds", OVER_NONE, "expected", OVER_VLLM, OVER_STATIC]]
    for each in sorted(benchmarks(), key=lambda each: each["concurrency"]):
        # If neither of vLLM's two best methods ran, the best of the others means little.
        ran = any(row["method"].startswith(("ngram", "suffix")) for row in each["methods"])
        cells = [
            "not run" if row is None else f"{_lead(row)} `{row['method']}`"
            for row in (best(each, VLLM_METHODS) if ran else None, best(each, STATIC_METHODS))
        ]
        rows.append([
            str(each["concurrency"]),
            f"`{each['benchmark']}`: {each['what']}",
            str(each["rounds"]),
            over_none(each),
            times(each["expected_over_none"]),
            *cells,
        ])  # fmt: skip
    return without_repeats(rows)


def latency_table() -> list[list[str]]:
    """What users of the servers with the policy that ships wait for."""
    gaps = "between pieces of an answer, median and p95"
    rows = [[AT_ONCE, "method", "tokens per second", "first token, median and p95", gaps]]
    for each in of_the_policy_that_ships():
        shown = ("none", *(best(each, kind)["method"] for kind in (VLLM_METHODS, STATIC_METHODS)))
        for row in each["methods"]:
            if row["method"] in (*shown, "adaspec"):
                name = row["method"]
                rows.append([
                    str(each["concurrency"]),
                    name if name == "adaspec" else f"`{name}`",
                    f"{row['tokens_per_s']:.0f}",
                    _milliseconds(row["first_token_s"]),
                    _milliseconds(row["between_pieces_s"]),
                ])  # fmt: skip
    return without_repeats(rows)


def best(benchmark: Row, methods: tuple[str, ...]) -> Any:
    """The fastest row of some methods; None where none of them ran."""
    rows = [row for row in benchmark["methods"] if row["method"].partition(" ")[0] in methods]
    return max(rows, key=lambda row: row["over_none"], default=None)


def over_none(benchmark: Row) -> str:
    """adaspec's speed-up, and how far its rounds lie apart."""
    row = best(benchmark, ("adaspec",))
    spread = row["over_none_spread"]
    return times(row["over_none"]) + (f" ({spread[0]:.2f} .. {spread[1]:.2f})" if spread else "")


def _lead(row: Row) -> str:
    """adaspec's lead over a method, and how far the rounds lie apart."""
    lead, spread = percent(row["adaspec_over"] - 1), row["adaspec_over_spread"]
    return f"{lead} ({' .. '.join(percent(each - 1) for each in spread)})" if spread else lead


def _milliseconds(seconds: list[float]) -> str:
    return f"{1e3 * seconds[0]:,.0f} and {1e3 * seconds[1]:,.0f} ms"


def _said(row: Row) -> str:
    """A method by its name, without its settings."""
    return {"suffix": "suffix decoding", "ngram": "n-gram"}[row["method"].partition(" ")[0]]
