"""What each part of a learned policy is worth, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaspec.evaluate.render.results import number
from adaspec.evaluate.render.wording import signed_percent

ABLATED = (
    "Lift over `static:best`, all workloads mixed, of the policy, of policies trained and run "
    "without one part of it each, and of the best settings in hindsight of two simpler families. "
    "No intervals: differences below a percent say little. `–`: nothing was there to take away, "
    "or, cross-fitted, one policy would have had to decide alone."
)


def ablation_lines(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The head and the lines of the table."""
    loads = [str(each) for each in found["concurrency"]]
    rows = [
        [
            row["name"],
            row["without"],
            *(signed_percent(number(row["lift"].get(load))) for load in loads),
        ]
        for row in found["rows"]
    ]
    return ["", "what is missing", *(f"at {load}" for load in loads)], rows
