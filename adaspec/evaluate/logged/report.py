"""A report on logged traces, as tables in the terminal and in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adaspec.evaluate.logged.estimators import ESTIMATORS
from adaspec.evaluate.render.contents import Contents, Part, Section
from adaspec.evaluate.render.figures import Figure
from adaspec.evaluate.render.table import (
    NULL,
    Table,
    Text,
    code,
    decimal,
    foreign,
    percent,
    plain,
    signed_percent,
    signed_range,
    simple_table,
)
from adaspec.evaluate.report_folder import EvaluationReport

TITLE = "What a log says of other policies"
_SENTENCE = (
    "At the logged decisions and the logged load: what a policy would have emitted had it decided "
    "there. `path` alone follows the policy to the decisions that it would have come to."
)


class LoggedReport(EvaluationReport):
    """A report's document on logged traces; it has tables alone."""

    def contents(self) -> Contents:
        """The tables that terminal and page show."""
        parts = [Part(table) for table in tables(self.document)]
        return Contents(
            title=TITLE,
            sections=[Section("Estimates", parts, brief=True)],
            notes=[foreign(note) for note in self.notes],
            command=plain(self.document.get("command") or ""),
        )

    def figures(self) -> list[Figure]:
        """No figures: a few rows say it all."""
        return []


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """What was judged, tokens per second by every estimator, and what exploration cost."""
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    yield _support(rows)
    yield _estimates(rows, document["cost"])
    explored = [row for row in rows if row.get("exploration")]
    if explored:
        yield _exploration(explored)


def _support(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells: list[list[Text]] = [
        [
            foreign(row["workload"]),
            code(row["policy"]),
            f"{row['requests']:,}",
            f"{row['decisions']:,}",
            decimal(row["running"], 1),
            percent(row.get("revealed_share"), 1),
            percent(row.get("unsupported_share"), 1),
            NULL
            if row.get("effective_decisions") is None
            else f"{row['effective_decisions']:,.0f}",
        ]
        for row in rows
    ]
    heads = ["workload", "policy", "requests", "decisions", "running", "revealed", "unsupported"]
    return simple_table("Support", [*heads, "effective decisions"], cells, 2, _SENTENCE)


def _estimates(rows: Sequence[Mapping[str, Any]], cost: str) -> Table:
    cells: list[list[Text]] = []
    for row in rows:
        for name in ("shown", *ESTIMATORS):
            figures = row["estimates"].get(name)
            if figures is None:
                continue
            cells.append(
                [
                    foreign(row["workload"]),
                    code(row["policy"]),
                    name,
                    _between(figures, "emitted_per_step", 2),
                    _between(figures, "tokens_per_s", 0),
                    signed_percent(figures["lift_over_logged"]),
                    signed_range(figures["lift_over_logged_ci95"]),
                ]
            )
    heads = ["workload", "policy", "estimator", "emitted per step", "tokens per second"]
    title: Text = ["Estimates, costs of ", code(cost)]
    return simple_table(title, [*heads, "over logged", "95%"], cells, 3)


def _between(figures: Mapping[str, Any], name: str, places: int) -> str:
    found = figures[f"{name}_ci95"]
    said = f"{figures[name]:,.{places}f}"
    if found is None:
        return said
    return f"{said} ({found[0]:,.{places}f} .. {found[1]:,.{places}f})"


def _exploration(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells: list[list[Text]] = [
        [
            foreign(row["workload"]),
            percent(row["exploration"]["explored_share"], 2),
            f"{row['exploration']['tokens_per_s_without']:,.0f}",
            signed_percent(row["exploration"]["lost_share"]),
            signed_range(row["exploration"]["lost_share_ci95"]),
        ]
        for row in rows
    ]
    heads = ["workload", "explored", "tokens per second without", "lost at most", "95%"]
    return simple_table("What exploring cost", heads, cells)
