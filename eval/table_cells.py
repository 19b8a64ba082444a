"""How the generated tables say what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

AT_ONCE, OVER_NONE = "requests at once", "over no speculation"
OVER_VLLM = "over the best of vLLM's own methods"
OVER_STATIC = "over the best static rule with splicing"
GAP_CLOSED = "of the gap to foresight closed"


def markdown(rows: list[list[str]]) -> str:
    """The rows as a Markdown table; the first row is its head."""
    head, *body = rows
    lines = [head, ["--"] * len(head), *body]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def with_interval(row: dict[str, Any], key: str, interval: str) -> str:
    """A lift, and its interval where the report has one."""
    if row[interval] is None:
        return percent(row[key])
    low, high = row[interval]
    return f"{percent(row[key])} ({percent(low)} .. {percent(high)})"


def times(value: float) -> str:
    """A ratio, as 1.23x."""
    return f"{value:.2f}x"


def percent(value: float) -> str:
    """A lift, as +1.2%."""
    return f"{round(100 * value, 1) + 0.0:+.1f}%"


def without_repeats(rows: list[list[str]]) -> list[list[str]]:
    """The same table, in which first cells that repeat the one above are empty."""
    return [
        ["", *row[1:]] if at and rows[at - 1][0] == row[0] else row for at, row in enumerate(rows)
    ]


def settings(specs: list[str]) -> str:
    """The settings that were best, of the parts of a cross-fit: the first, if there are several."""
    return f"`{specs[0]}`" + (" and others" if len(specs) > 1 else "")


def share(value: float | None) -> str:
    """A share, as 12%; nothing where it is not known."""
    return "" if value is None else f"{value:.0%}"


def joined(cells: Sequence[str]) -> str:
    """Values of several loads in a cell, the unit said once."""
    *others, last = cells
    return " / ".join([*(each.rstrip("%x") for each in others), last])
