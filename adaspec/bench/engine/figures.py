"""What adaspec did in a server, read from its `/metrics` and laid out in a few rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from adaspec.vllm.counters import DRAFTED, DRAFTERS, FORWARDS, REASONS, SHORT
from adaspec.vllm.exposition import PREFIX

Labels = tuple[tuple[str, str], ...]

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(r'([\w:]+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)')
_ESCAPED = {r"\n": "\n", r"\"": '"', r"\\": "\\"}
_NONE = "-"
_CLOCKED = {
    "none": "step time over the costs', no draft",
    "short": f"step time over the costs', up to {SHORT} drafted a request",
    "long": "step time over the costs', more",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Every sample of a server's `/metrics` whose name begins with ours."""

    samples: dict[tuple[str, Labels], float]

    @classmethod
    def read(cls, text: str) -> Self:
        """From Prometheus' text format; what is not ours, or not a sample, is passed over."""
        found = {}
        for line in text.splitlines():
            sample = _SAMPLE.match(line)
            if sample is None or not sample[1].startswith(PREFIX):
                continue
            pairs = _LABEL.findall(sample[2] or "")
            labels = tuple(sorted((name, _plain(value)) for name, value in pairs))
            found[sample[1].removeprefix(PREFIX), labels] = float(sample[3])
        return cls(found)

    def __sub__(self, earlier: Figures) -> Figures:
        """What was counted since an earlier reading."""
        return Figures(
            {key: value - earlier.samples.get(key, 0.0) for key, value in self.samples.items()}
        )

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 where there is none."""
        wanted = labels.items()
        return sum(
            value
            for (found, pairs), value in self.samples.items()
            if found == name and wanted <= dict(pairs).items()
        )

    def label(self, name: str, which: str) -> str | None:
        """A label's value in a metric's first sample; None where there is none."""
        for found, pairs in self.samples:
            if found == name:
                return dict(pairs).get(which)
        return None


def figure_rows(columns: Sequence[Figures]) -> list[tuple[str, list[str]]]:
    """Rows of a table, a name and a cell for each column; decisions never taken are left out."""
    rows = [_row("decisions", columns, lambda each: _count(each.total("decisions_total")))]
    for source, reasons in REASONS.items():
        for reason in reasons:
            if not any(_taken(each, source, reason) for each in columns):
                continue
            words = reason.replace("_", " ")
            rows.append(
                (
                    f"  {source}: {words}",
                    [_count(_taken(each, source, reason)) for each in columns],
                )
            )
    for source in DRAFTERS:
        if any(each.total("drafted_tokens_total", source=source) for each in columns):
            rows.append((f"accepted of drafted, {source}", [_hits(c, source) for c in columns]))
    rows.append(_row("emitted per decision", columns, _emitted))
    for kind in FORWARDS:
        name = f"drafter forwards, {kind.replace('_', '-')}"
        rows.append((name, [_count(c.total("drafter_forwards_total", kind=kind)) for c in columns]))
    rows.append(_row("deciding, ms a step", columns, _decision_ms))
    for drafted in DRAFTED:
        if any(each.total("clocked_steps_total", drafted=drafted) for each in columns):
            rows.append((_CLOCKED[drafted], [_clocked(each, drafted) for each in columns]))
    if any(each.total("faults_total") for each in columns):
        rows.append(_row("faults", columns, lambda each: _count(each.total("faults_total"))))
    return rows


def _row(
    name: str, columns: Sequence[Figures], cell: Callable[[Figures], str]
) -> tuple[str, list[str]]:
    return name, [cell(each) for each in columns]


def _taken(figures: Figures, source: str, reason: str) -> float:
    return figures.total("decisions_total", source=source, reason=reason)


def _hits(figures: Figures, source: str) -> str:
    drafted = figures.total("drafted_tokens_total", source=source)
    accepted = figures.total("accepted_tokens_total", source=source)
    return f"{_count(accepted)} of {_count(drafted)}" if drafted else _NONE


def _emitted(figures: Figures) -> str:
    """Each decision is verified in one step, which emits what it accepts and one token more."""
    decisions = figures.total("decisions_total")
    accepted = figures.total("accepted_tokens_total")
    return f"{1 + accepted / decisions:.2f}" if decisions else _NONE


def _decision_ms(figures: Figures) -> str:
    steps = figures.total("decision_seconds_count")
    return f"{1e3 * figures.total('decision_seconds_sum') / steps:.2f}" if steps else _NONE


def _clocked(figures: Figures, drafted: str) -> str:
    modelled = figures.total("clocked_step_modelled_seconds_total", drafted=drafted)
    took = figures.total("clocked_step_seconds_total", drafted=drafted)
    steps = figures.total("clocked_steps_total", drafted=drafted)
    return f"{took / modelled:.2f} of {_count(steps)}" if modelled else _NONE


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _plain(value: str) -> str:
    return re.sub(r'\\[n"\\]', lambda found: _ESCAPED[found[0]], value)
