"""`adaspec inspect`: say what a path holds, how large it is, and whether it is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table

from adaspec.cli.options import force_option, json_option, out_option
from adaspec.cli.output import (
    ProgressBar,
    cost_table,
    print_json,
    print_lines,
    printable,
    results,
)
from adaspec.evaluate.inspection import inspect
from adaspec.evaluate.report_folder import EvaluationReport
from adaspec.evaluate.written_report import is_report, write_page

_SOURCE_COLUMNS = (
    ("source", "source", ""),
    ("drafts", "drafts", ","),
    ("accepted", "accepted_mean", ".2f"),
    (">= 1", "accepted_share_at_least_1", ".1%"),
    ("censored", "censored_share", ".1%"),
    ("draft_len", "draft_len_mean", ".2f"),
)
"""Heading, key and format of what is said of a source; the last is of logged traces alone."""


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@out_option("PAGE.html", "Write a report's page.", required=False)
@force_option("Replace a page that is there already.")
@json_option()
def command(path: Path, out: Path | None, force: bool, as_json: bool) -> None:
    """Say what the trace, policy, report or cost file at PATH is, how large, and whether sound.

    Every row of a trace is read and checked. Of a report, the tables are printed and the page is
    written. Exit code 2 where something is wrong.

    \b
    Example:
      adaspec inspect traces
      adaspec inspect cost.json --json
      adaspec inspect report -o page.html
    """
    if out is not None and not is_report(path):
        raise click.UsageError(f"{path}: is no report, and only a report has a page: leave -o out")
    with ProgressBar() as bar:
        document = inspect(path, bar)
    if out is not None:
        write_page(EvaluationReport(document["report"]), out, force)
    if as_json:
        print_json(document)
        return
    console = results()
    if document["what"] == "report":
        EvaluationReport(document["report"]).print(console)
        return
    describe = {"trace": _describe_trace, "policy": _describe_policy, "cost": _describe_cost}
    sound = "sound" if document["sound"] else "not whole, see below"
    line = describe[document["what"]](document)
    print_lines(console, f"{document['path'] or 'builtin'}: {line}{sound}")
    if document["what"] == "trace":
        console.print(_trace_table(document))
    elif document["what"] == "cost":
        console.print(cost_table(document["cost"], document["fit"]))
    for warning in document["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(printable(warning))}", soft_wrap=True)


def _describe_cost(document: dict[str, Any]) -> str:
    cost = document["cost"]
    of = " on ".join(part for part in (cost["target"], cost["hardware"]) if part)
    return f"cost model '{cost['name']}'{f' of {of}' if of else ''}, "


def _describe_policy(document: dict[str, Any]) -> str:
    policy = document["manifest"]
    parts = [
        f"policy, schema {policy['schema']}, by adaspec {policy['adaspec_version']}",
        f"{len(document['files'])} files, {_size(document['bytes'])}",
        f"sources {', '.join(policy['sources'])}",
        f"target {policy['target']}" if policy["target"] else "",
        f"drafter {policy['drafter']}" if policy["drafter"] else "",
        f"features {policy['fingerprint']}",
        f"{len(policy['training_requests']):,} training requests",
    ]
    return f"{', '.join(filter(None, parts))}; "


def _describe_trace(document: dict[str, Any]) -> str:
    manifest = document["manifest"]
    rows = "requests" if manifest["kind"] == "dense" else "steps"
    tokens = sum(workload["output_tokens"] or 0 for workload in document["workloads"])
    shards = "shard" if document["shards"] == 1 else "shards"
    by = f"by {manifest['engine']} {manifest['engine_version'] or ''}".rstrip()
    parts = [
        f"{manifest['kind']} trace, schema {manifest['schema']}",
        f"{document['rows']:,} {rows} in {document['shards']} {shards}, {_size(document['bytes'])}",
        f"{tokens:,} output tokens" if tokens else "",
        f"target {manifest['target']}" if manifest["target"] else "",
        f"drafter {manifest['drafter']}" if manifest["drafter"] else "",
        f"cap {manifest['neural_cap']}" if manifest["neural_cap"] else "",
        by if manifest["engine"] else "",
        "synthetic" if manifest["synthetic"] else "",
    ]
    return f"{', '.join(filter(None, parts))}; "


def _trace_table(document: dict[str, Any]) -> Table:
    logged = document["manifest"]["kind"] == "logged"
    counted = "steps" if logged else "paired"
    columns = _SOURCE_COLUMNS if logged else _SOURCE_COLUMNS[:-1]
    # The table is narrow enough for eighty columns without folding.
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("workload", overflow="fold")
    for heading in ("requests", counted, *(heading for heading, _, _ in columns)):
        justify: JustifyMethod = "left" if heading == "source" else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for workload in document["workloads"]:
        first = [escape(printable(workload["workload"]))]
        first += [_shown(workload["requests"], ","), _shown(workload[counted], ",")]
        for source in workload["sources"] or [{}]:
            table.add_row(*first, *(_shown(source.get(key), form) for _, key, form in columns))
            first = [""] * len(first)
    return table


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} GB"


def _shown(value: float | str | None, form: str) -> str:
    return "-" if value is None else format(value, form)
