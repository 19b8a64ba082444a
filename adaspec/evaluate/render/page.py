"""The parts of a report that report.md and the terminal show, in order and without a format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from adaspec.evaluate.options import ALL, MIN_GAP
from adaspec.evaluate.render import context_tables, result_tables
from adaspec.evaluate.render.report import Report
from adaspec.evaluate.render.table import NULL, Span, Table, Text, code, foreign

_HOW_TO_READ = (
    "**Speedup** is tokens per second over `none` (no speculation) on the same requests in the "
    "same order, with *concurrency* requests running at once. "
    "**Lift** is speedup over an opponent's, minus 1: `static:best` is the one that counts, the "
    "best of all static settings picked in hindsight on these very requests at that concurrency, "
    "and a lift whose 95% interval holds 0 cannot be told from nothing. "
    "**Gap closed** is how far a policy gets from `fixed:best` (one method, one length) to "
    "`oracle:plan-splice` (perfect foresight): 0% is the first, 100% the second; "
    f"{NULL} where that gap is under {100 * MIN_GAP:g}% of `none`, too little to take a share of."
)
_TERMINAL_NOTE = (
    "`...:best` is the best setting in hindsight at each concurrency; gap closed = "
    "(policy - `fixed:best`) / (`oracle:plan-splice` - `fixed:best`)."
)


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture beside report.md: its path from there and what it shows."""

    path: str
    caption: str


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; level 1 is the page's title."""

    text: Text
    level: int = 2


@dataclass(frozen=True, slots=True)
class Section:
    """A table under its title, which is a heading of this level."""

    table: Table
    level: int = 2


@dataclass(frozen=True, slots=True)
class Listing:
    """A command line, shown as it is."""

    text: str


Element = Text | Heading | Section | Listing | Plot
"""A part of a page; a plain text is a paragraph."""


def summary(report: Report) -> tuple[list[Table], list[str]]:
    """The tables that the terminal shows (settings, headlines, speedups, lifts), and footnotes."""
    notes, tables = context_tables.footnotes(report), [context_tables.settings(report)]
    if report.main is None:
        return tables, []
    judged = _judged(report)
    results: list[Table | None] = [result_tables.headline(report, policy) for policy in judged]
    if judged:
        results.append(result_tables.latency(report))
        notes.append(_TERMINAL_NOTE)
    for workload in [report.representative] if report.representative else report.workloads:
        results.append(result_tables.speedups(report, workload))
        results.append(result_tables.winners(report, workload))
    if report.alone:
        results += [result_tables.lifts_alone(report, policy) for policy in judged]
    return [*tables, *(table for table in results if table is not None)], notes


def report_page(report: Report, plots: Sequence[Plot] = ()) -> list[Element]:
    """Everything that report.md shows."""
    settings, definitions = context_tables.settings(report), context_tables.definitions(report)
    defaults, requests = context_tables.defaults(report), context_tables.requests(report)
    footnotes = "\n".join(context_tables.footnotes(report))
    return [
        Heading(_title(report), 1),
        _HOW_TO_READ,
        *_sections(settings),
        *_headlines(report),
        *_sections(definitions),
        *([Heading("Pictures")] if plots else []),
        *plots,
        *_results(report),
        *_sections(defaults, requests),
        *_how_made(report),
        "---",
        footnotes,
    ]


def _title(report: Report) -> Text:
    title: list[str | Span] = ["Evaluation: the baselines and the oracles"]
    if report.policies:
        names = [part for name in report.policies for part in (", ", code(name))]
        title = ["Evaluation of ", *names[1:]]
    return result_tables.batched(report, title)


def _headlines(report: Report) -> Iterator[Element]:
    judged = _judged(report)
    if report.main is None:
        yield "No rows: nothing was evaluated."
    elif judged:
        yield Heading("Headline")
        yield from _sections(*(result_tables.headline(report, name) for name in judged), level=3)


def _results(report: Report) -> Iterator[Element]:
    for workload in report.workloads:
        name = result_tables.place_name(report, workload)
        if workload == ALL:
            name = replace(name, text=name.text[:1].upper() + name.text[1:])
        yield Heading(name)
        yield from _sections(
            result_tables.speedups(report, workload),
            result_tables.steps(report, workload),
            result_tables.winners(report, workload),
            level=3,
        )
    judged = _judged(report)
    if judged and report.alone:
        yield Heading("Lift over `static:best` on each workload alone")
        yield from _sections(
            *(result_tables.lifts_alone(report, policy) for policy in judged), level=3
        )
    if report.main is not None:
        yield from _sections(result_tables.latency(report))
    if report.calibration and report.calibration["sources"]:
        yield from _sections(*result_tables.calibration(report.calibration))
    if report.ablations:
        yield from _sections(result_tables.ablations(report.ablations))


def _how_made(report: Report) -> Iterator[Element]:
    document = report.document
    keys = ("seed", "orders", "resamples", "cap", "adaspec")
    settings = ", ".join(f"{key} {document[key]}" for key in keys if document.get(key) is not None)
    command = document.get("command")
    if command or settings:
        yield Heading("How to make this again")
    if command:
        yield Listing(command)
    if settings:
        yield [foreign(settings), "."]


def _judged(report: Report) -> Sequence[str]:
    """The policies that have headlines."""
    return report.policies if report.headlines else ()


def _sections(*tables: Table | None, level: int = 2) -> list[Section]:
    return [Section(table, level) for table in tables if table is not None]
