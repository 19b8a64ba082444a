"""What a server counted, read from its `/metrics`; what adaspec did in it, as rows of a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from adaspec.vllm.metrics import DRAFTED, DRAFTERS, FORWARDS, PREFIX, REASONS, SHORT

Labels = tuple[tuple[str, str], ...]

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(r'([\w:]+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)')
_ESCAPED = {r"\n": "\n", r"\"": '"', r"\\": "\\"}
_NOTHING = "-"
_CLOCKED = {
    "none": "step time over the costs', no draft",
    "short": f"step time over the costs', up to {SHORT} drafted a request",
    "long": "step time over the costs', more",
}


@dataclass(frozen=True, slots=True)
class Metrics:
    """Every sample of a server's `/metrics` whose name begins with a prefix, which is left out."""

    samples: dict[tuple[str, Labels], float]

    @classmethod
    def read(cls, text: str, prefix: str = PREFIX) -> Self:
        """From Prometheus' text format; other metrics, and lines without a sample, are ignored."""
        found = {}
        for line in text.splitlines():
            sample = _SAMPLE.match(line)
            if sample is None or not sample[1].startswith(prefix):
                continue
            pairs = _LABEL.findall(sample[2] or "")
            labels = tuple(sorted((name, _unescaped(value)) for name, value in pairs))
            found[sample[1].removeprefix(prefix), labels] = float(sample[3])
        return cls(found)

    def __sub__(self, earlier: Metrics) -> Metrics:
        """What was counted since an earlier reading."""
        return Metrics(
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


def metric_rows(columns: Sequence[Metrics]) -> list[tuple[str, list[str]]]:
    """Rows of a table, a name and a cell for each column; decisions never taken are left out."""
    rows: list[tuple[str, list[str]]] = []

    def row(name: str, cell: Callable[[Metrics], str]) -> None:
        rows.append((name, [cell(each) for each in columns]))

    def counted(name: str, metric: str, always: bool = True, **labels: str) -> None:
        if always or any(each.total(metric, **labels) for each in columns):
            row(name, lambda each: _count(each.total(metric, **labels)))

    counted("decisions", "decisions_total")
    for source, reasons in REASONS.items():
        for reason in reasons:
            name = f"  {source}: {reason.replace('_', ' ')}"
            counted(name, "decisions_total", always=False, source=source, reason=reason)
    for source in DRAFTERS:
        if any(each.total("drafted_tokens_total", source=source) for each in columns):
            row(f"accepted of drafted, {source}", partial(_acceptance, source=source))
    row("emitted per decision", _emitted)
    for kind in FORWARDS:
        name = f"drafter forwards, {kind.replace('_', '-')}"
        counted(name, "drafter_forwards_total", kind=kind)
    row("deciding, ms a step", _decision_ms)
    for drafted in DRAFTED:
        if any(each.total("clocked_steps_total", drafted=drafted) for each in columns):
            row(_CLOCKED[drafted], partial(_clocked, drafted=drafted))
    counted("faults", "faults_total", always=False)
    return rows


def _acceptance(metrics: Metrics, source: str) -> str:
    drafted = metrics.total("drafted_tokens_total", source=source)
    accepted = metrics.total("accepted_tokens_total", source=source)
    return f"{_count(accepted)} of {_count(drafted)}" if drafted else _NOTHING


def _emitted(metrics: Metrics) -> str:
    """Each decision is verified in one step, which emits what it accepts and one token more."""
    decisions = metrics.total("decisions_total")
    accepted = metrics.total("accepted_tokens_total")
    return f"{1 + accepted / decisions:.2f}" if decisions else _NOTHING


def _decision_ms(metrics: Metrics) -> str:
    steps = metrics.total("decision_seconds_count")
    return f"{1e3 * metrics.total('decision_seconds_sum') / steps:.2f}" if steps else _NOTHING


def _clocked(metrics: Metrics, drafted: str) -> str:
    modelled = metrics.total("clocked_step_modelled_seconds_total", drafted=drafted)
    took = metrics.total("clocked_step_seconds_total", drafted=drafted)
    steps = metrics.total("clocked_steps_total", drafted=drafted)
    return f"{took / modelled:.2f} of {_count(steps)}" if modelled else _NOTHING


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _unescaped(value: str) -> str:
    return re.sub(r'\\[n"\\]', lambda found: _ESCAPED[found[0]], value)
