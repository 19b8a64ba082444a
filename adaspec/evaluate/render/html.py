"""A report as one HTML page that opens without a network, with plots and requests to step through.

The page is `report.html`, its controls are `report.js`, and its plots are drawn by plotly's own
bundle. All that comes from traces or names is escaped: in HTML by `html.escape`, in the page's
data so that no character could end its script.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib import resources
from string import Template
from typing import Any

from adaspec.documents import json_types
from adaspec.evaluate.observation import (
    MAX_OUTPUT_SHOWN,
    MAX_STEPS,
    SAMPLED,
    SHOWN_TOKENS,
    Observations,
)
from adaspec.evaluate.options import ALL
from adaspec.evaluate.render import tables
from adaspec.evaluate.render.markdown import HOW_TO_READ
from adaspec.evaluate.render.table import Kind, Span, Table, Text, plain, spans
from adaspec.evaluate.report import LIFT, Report
from adaspec.evaluate.vocabulary import TextOf

_FIGURES = ("speedup", "tokens_per_s", "accepted_per_step", "drafted_per_step", LIFT)
_LOOK_AHEAD = 16
"""Output tokens shown behind the last step that is kept."""


def report_html(
    report: Report,
    observations: Observations | None,
    plotly_js: str,
    text_of: TextOf | None = None,
) -> str:
    """`report` as one page; `text_of` tells the text of token ids, where it is known."""
    heading = tables.title(report)
    data = page_data(report, observations, text_of)
    folder = resources.files("adaspec.evaluate.render")
    page = Template((folder / "report.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=html.escape("".join(span.text for span in spans(heading)).replace("`", "")),
        heading=text_html(heading),
        how_to_read=text_html(HOW_TO_READ),
        settings=table_html(tables.settings(report)),
        headline=_joined(
            tables.headline(report, report.main, name)
            for name in report.judged
            if report.main is not None
        ),
        figures="".join(_figures(report)),
        footnotes="".join(f"<p>{text_html(line)}</p>" for line in tables.footnotes(report)),
        command=_command(report),
        sampled=str(SAMPLED),
        max_output_shown=f"{MAX_OUTPUT_SHOWN:,}",
        max_steps=f"{MAX_STEPS:,}",
        shown_tokens=str(SHOWN_TOKENS),
        tokens="text" if text_of else "ids",
        data=script_json(data),
        script=(folder / "report.js").read_text(encoding="utf-8"),
        plotly=plotly_js,
    )


def page_data(
    report: Report,
    observations: Observations | None,
    text_of: TextOf | None = None,
) -> dict[str, Any]:
    """What the page's script shows."""
    kinds = dict.fromkeys(report.baselines, "baseline") | dict.fromkeys(report.oracles, "oracle")
    names = {ALL: tables.MIX}
    data: dict[str, Any] = {
        "workloads": [
            {"key": name, "name": names.get(name, plain(name))} for name in report.workloads
        ],
        "loads": report.concurrencies,
        "policies": [
            {"key": name, "name": plain(name), "kind": kinds.get(name, "named")}
            for name in report.shown
        ],
        "rows": [
            {
                "workload": workload,
                "load": load,
                "policy": policy,
                "ci95": entry.get("ci95"),
                "lift_ci95": entry.get("lift_ci95"),
                "spec": entry.get("detail", {}).get("spec"),
                **{name: entry.get(name) for name in _FIGURES},
            }
            for (workload, load, policy), entry in report.entries.items()
        ],
        "losses": [],
        "counts": [],
        "ids": {},
        "requests": {},
        "passages": [],
        "shows_tokens": False,
        "unwatched": [],
        "vocabulary": None,
    }
    if observations is not None:
        data |= _observed(observations, text_of)
    return data


def _observed(seen: Observations, text_of: TextOf | None) -> dict[str, Any]:
    ends: dict[int, int] = {}
    for passage in seen.passages:
        last = passage.steps[-1]
        end = last["position"] + last["emitted"] + _LOOK_AHEAD
        ends[passage.request] = max(ends.get(passage.request, 0), end)
    requests = {
        index: {
            "prompt_len": len(request.prompt_tokens),
            "output_len": len(request.output_tokens),
            "prompt_end": request.prompt_tokens[-_LOOK_AHEAD:].tolist(),
            "output": request.output_tokens[: ends[index]].tolist(),
        }
        for index, request in enumerate(seen.requests)
        if index in ends
    }
    counts = [{k: _plain_list(v) for k, v in asdict(each).items()} for each in seen.counts]
    counted = sorted({index for each in counts for index in each["request"]} | ends.keys())
    data = {
        "losses": [asdict(each) | {"rest_s": each.rest_s} for each in seen.losses],
        "counts": counts,
        "ids": {i: [seen.requests[i].workload, plain(seen.requests[i].id)] for i in counted},
        "requests": requests,
        "passages": [asdict(each) for each in seen.passages],
        "shows_tokens": seen.shows_tokens,
        "unwatched": [plain(name) for name in seen.unwatched],
    }
    if text_of is not None:
        used = {token for each in requests.values() for token in each["prompt_end"]}
        used |= {token for each in requests.values() for token in each["output"]}
        for step in (step for passage in seen.passages for step in passage.steps):
            used.update(step["candidate"], step.get("drafted", ()), step.get("copied", ()))
        data["vocabulary"] = {token: text_of(token) for token in sorted(used)}
    return data


def _plain_list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def script_json(data: object) -> str:
    """Strict JSON that can stand in a script: no character of it could end that."""
    text = json.dumps(json_types(data), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _figures(report: Report) -> Iterator[str]:
    """All further tables, each workload's folded away."""
    for workload in report.workloads:
        name = text_html(tables.place_name(report, workload))
        figures = (tables.speedups, tables.steps, tables.winners)
        opened = " open" if workload == report.main else ""
        yield f"<details{opened}><summary>Tables: {name}</summary>"
        yield _joined(table(report, workload) for table in figures)
        yield "</details>"
    if report.judged and report.alone:
        yield _joined(tables.lifts_alone(report, policy) for policy in report.judged)
    if report.main is not None:
        yield _joined([tables.latency(report, report.main)])
    calibration = report.document.get("calibration")
    if calibration and calibration["sources"]:
        yield _joined(tables.calibration(calibration))
    yield "<details><summary>What the words mean</summary>"
    yield _joined([tables.definitions(report), tables.defaults(report), tables.requests(report)])
    yield "</details>"


def _command(report: Report) -> str:
    command = report.document.get("command")
    if not command:
        return ""
    return f"<h2>How to make this again</h2><pre>{html.escape(plain(command))}</pre>"


def _joined(some: Iterable[Table | None]) -> str:
    return "".join(table_html(table) for table in some if table is not None)


def table_html(table: Table) -> str:
    """A table under its title; it scrolls by itself where it is wider than the page."""
    head = "".join(
        f"<th scope=col{' class=left' if column.left else ''}>{text_html(column.head)}</th>"
        for column in table.columns
    )
    bodies = []
    for group in table.groups:
        lines = []
        for row in group:
            cells = "".join(
                f"<td{' class=left' if column.left else ''}>{_html(pieces)}</td>"
                for column, pieces in zip(table.columns, row.pieces, strict=True)
            )
            mark = f" class={row.mark.value}" if row.mark else ""
            lines.append(f"<tr{mark}>{cells}</tr>")
        bodies.append(f"<tbody>{''.join(lines)}</tbody>")
    title = text_html(table.title)
    label = html.escape("".join(span.text for span in spans(table.title)).replace("`", ""))
    parts = [f"<h3>{title}</h3>" if title else ""]
    parts.append(f"<p>{text_html(table.sentence)}</p>" if table.sentence else "")
    parts += [
        f'<p><span class="{mark.value}">■</span> {text_html(meaning)}</p>'
        for mark, meaning in table.meanings.items()
    ]
    parts.append(f'<div class=wide tabindex=0 role=region aria-label="{label or "settings"}">')
    heads = f"<thead><tr>{head}</tr></thead>" if any(c.head for c in table.columns) else ""
    parts.append(f"<table>{heads}{''.join(bodies)}</table></div>")
    return "".join(parts)


def text_html(text: Text) -> str:
    """A text as HTML, escaped; adaspec's own words may have `code` and **stress** in them."""
    return _html(spans(text))


def _html(pieces: Sequence[Span]) -> str:
    texts = []
    for span in pieces:
        text = html.escape(span.text)
        if span.kind is Kind.OWN:
            text = re.sub("`([^`]+)`", r"<code>\1</code>", text)
            text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
            text = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)
        elif span.kind is Kind.CODE:
            text = f"<code>{text}</code>"
        marks = " ".join(mark.value for mark in span.marks)
        texts.append(f'<span class="{marks}">{text}</span>' if marks else text)
    return "".join(texts)
