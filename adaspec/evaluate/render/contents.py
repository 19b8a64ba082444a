"""What a report shows, once for terminal and page: its tables, in order, and what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adaspec.evaluate.options import MIN_GAP
from adaspec.evaluate.render import tables
from adaspec.evaluate.render.table import NULL, Table, Text, foreign, plain
from adaspec.evaluate.report import Report


@dataclass(frozen=True, slots=True)
class Part:
    """A table, of one workload or of the whole report."""

    table: Table
    workload: str | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Tables under one heading."""

    title: str
    parts: Sequence[Part]
    brief: bool = False
    """Whether the terminal shows it, too."""
    folded: bool = False
    """Whether the page shows it only when asked."""

    @property
    def titled(self) -> bool:
        """Whether several of its tables are seen at once, so that their own titles are needed."""
        return len(self.parts) > len({part.workload for part in self.parts})


@dataclass(frozen=True, slots=True)
class Contents:
    """All that is said of a report, but for its figures."""

    title: Text
    sections: Sequence[Section]
    subject: Text = ""
    settings: Table | None = None
    notes: Sequence[Text] = ()
    how_to_read: Text = ""
    workloads: Sequence[str] = ()
    """What a reader can choose from, the first one first; likewise `loads`."""
    loads: Sequence[int] = ()
    brief_workloads: Sequence[str] = ()
    """The workloads that the terminal shows."""
    headline: Sequence[Part] = ()
    """The table of each judged policy on each workload; the first `cards` begin the page."""
    cards: int = 0
    command: str = ""


_BEGINNING = 3
"""The policies whose figures begin the page; of more, a reader would see nothing else."""
HOW_TO_READ = (
    "**Speedup** is tokens per second over `none` (no speculation) on the same requests in the "
    "same order, with *concurrency* requests running at once. "
    "**Lift** is speedup over an opponent's, minus 1: `static:best` is the one that counts, the "
    "best of all static settings picked in hindsight on these very requests at that concurrency, "
    "and a lift whose 95% interval holds 0 cannot be told from nothing. "
    "**Gap closed** is how far a policy gets from `fixed:best` (one method, one length) to "
    "`oracle:plan-splice` (perfect foresight): 0% is the first, 100% the second; "
    f"{NULL} where that gap is under {100 * MIN_GAP:g}% of `none`, too little to take a share of."
)


def contents_of_log(document: Mapping[str, Any]) -> Contents:
    """The contents of a report on logged traces: its one table."""
    return Contents(
        title="What a log says of other policies",
        sections=[Section("Estimates", [Part(tables.estimates(document))], brief=True)],
        notes=[foreign(note) for note in document["notes"]],
        command=plain(document.get("command") or ""),
    )


def contents_of(report: Report) -> Contents:
    """The contents of an evaluation's report."""
    brief = [report.representative] if report.representative else report.workloads
    return Contents(
        title=tables.title(report),
        sections=[each for each in _sections(report) if each.parts],
        subject=tables.subject(report),
        settings=tables.settings(report),
        notes=tables.footnotes(report),
        how_to_read=HOW_TO_READ if report.main is not None else "",
        workloads=report.workloads,
        loads=report.concurrencies,
        brief_workloads=brief,
        headline=[
            Part(tables.headline(report, workload, policy), workload)
            for policy in report.judged
            for workload in report.workloads
        ],
        cards=_BEGINNING * len(report.workloads),
        command=plain(report.document.get("command") or ""),
    )


def _sections(report: Report) -> Iterator[Section]:
    def by_workload(table: Callable[[Report, str], Table | None]) -> list[Part]:
        made = ((table(report, workload), workload) for workload in report.workloads)
        return [Part(each, workload) for each, workload in made if each is not None]

    def whole(*some: Table | None) -> list[Part]:
        return [Part(table) for table in some if table is not None]

    yield Section("Speedup", by_workload(tables.speedups), brief=True)
    if report.judged and report.alone:
        alone = whole(*(tables.lifts_alone(report, policy) for policy in report.judged))
        yield Section("Lift over static:best on each workload alone", alone, brief=True)
    yield Section("Which settings won", by_workload(tables.winners), brief=True)
    yield Section("Latency", by_workload(tables.latency), brief=bool(report.judged))
    yield Section("Tokens per step", by_workload(tables.steps))
    calibration = report.document.get("calibration")
    if calibration and calibration["sources"]:
        yield Section("Calibration", whole(*tables.calibration(calibration)))
    yield Section("What each row is", whole(tables.definitions(report)), folded=True)
