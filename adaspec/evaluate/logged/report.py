"""A report on logged traces, as a table in the terminal and in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
_HEADS = ("workload", "policy", "requests", "revealed", "emitted per step", "tokens per second")
_SENTENCE = (
    "Through the logged texts and at the logged load: `logged` is what ran, all others what their "
    "own path is expected to give. *Revealed* is the share of its steps that text or log shows."
)


class LoggedReport(EvaluationReport):
    """A report's document on logged traces; it has one table."""

    def contents(self) -> Contents:
        """The table that terminal and page show."""
        return Contents(
            title=TITLE,
            sections=[Section("Estimates", [Part(table(self.document))], brief=True)],
            notes=[foreign(note) for note in self.notes],
            command=plain(self.document.get("command") or ""),
        )

    def figures(self) -> list[Figure]:
        """No figures: a few rows say it all."""
        return []


def table(document: Mapping[str, Any]) -> Table:
    """What ran, and what each policy's own path would have given."""
    title: Text = [f"{TITLE}, costs of ", code(document["cost"])]
    return simple_table(title, [*_HEADS, "over logged", "95%"], _cells(document), 2, _SENTENCE)


def _cells(document: Mapping[str, Any]) -> Iterator[list[Text]]:
    for row in document["rows"]:
        said: list[Text] = [NULL] * 4
        (figures,) = row["estimates"].values()
        if figures is not None:
            said = [
                decimal(figures["emitted_per_step"], 2),
                f"{figures['tokens_per_s']:,.0f}",
                signed_percent(figures["lift_over_logged"]),
                signed_range(figures["lift_over_logged_ci95"]),
            ]
        names: list[Text] = [foreign(row["workload"]), code(row["policy"]), f"{row['requests']:,}"]
        yield [*names, percent(row.get("revealed_share"), 1), *said]
