"""A report on logged traces, as a table in the terminal and in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaspec.evaluate.options import Progress
from adaspec.evaluate.render.table import (
    NULL,
    Table,
    Text,
    code,
    decimal,
    foreign,
    percent,
    signed_percent,
    signed_range,
    simple_table,
)
from adaspec.evaluate.report_folder import EvaluationReport

if TYPE_CHECKING:
    from rich.console import Console

_HEADS = ("workload", "policy", "requests", "revealed", "emitted per step", "tokens per second")
_SENTENCE = (
    "Through the logged texts and at the logged load: `logged` is what ran, all others what their "
    "own path is expected to give. *Revealed* is the share of its steps that text or log shows."
)


class LoggedReport(EvaluationReport):
    """A report's document on logged traces; `print` shows it as a table."""

    def print(self, console: Console) -> None:
        """Show the report as a table, as wide as the console is."""
        from adaspec.evaluate.render.terminal import print_table

        print_table(table(self.document), console)
        for note in self.notes:
            console.print(note, style="dim", markup=False)

    def _fill(self, folder: Path, progress: Progress) -> None:
        (folder / "report.json").write_text(self.to_json(), encoding="utf-8")


def table(document: Mapping[str, Any]) -> Table:
    """What ran, and what each policy's own path would have given."""
    title: Text = ["What a log says of other policies, costs of ", code(document["cost"])]
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
