"""`adaspec inspect`: what a path holds, how large it is, whether it is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from adaspec.cli.options import json_option
from adaspec.cli.output import ProgressBar, print_json, printable, results
from adaspec.evaluate.inspection import (
    CostInspection,
    Inspection,
    PolicyInspection,
    TraceInspection,
    inspect,
)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def command(path: Path, as_json: bool) -> None:
    """Say what the trace, policy folder or cost file at PATH is, how large, and whether sound.

    Every row of a trace is read and checked. Exit code 2 where something is wrong.

    \b
    Example:
      adaspec inspect traces
      adaspec inspect cost.json --json
    """
    with ProgressBar() as bar:
        found = inspect(path, bar)
    if as_json:
        print_json(found.document())
        return
    _print(found)


def _print(found: Inspection) -> None:
    console = results()
    console.print(escape(printable(_headline(found))), soft_wrap=True)
    if isinstance(found, TraceInspection):
        console.print(_trace_table(found))
    elif isinstance(found, CostInspection):
        console.print(_cost_table(found))
    for warning in found.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(printable(warning))}", soft_wrap=True)


def _headline(found: Inspection) -> str:
    where = found.path if found.path is not None else "builtin"
    sound = "sound" if not found.warnings else "not whole, see below"
    if isinstance(found, CostInspection):
        of = " on ".join(part for part in (found.cost.target, found.cost.hardware) if part)
        return f"{where}: cost model '{found.cost.name}'{f' of {of}' if of else ''}, {sound}"
    if isinstance(found, PolicyInspection):
        size = sum(found.files.values())
        policy = found.manifest
        made = [
            f"sources {', '.join(policy.sources)}",
            f"target {policy.target}" if policy.target else "",
            f"drafter {policy.drafter}" if policy.drafter else "",
            f"features {policy.fingerprint}",
            f"{len(policy.training_requests):,} training requests",
        ]
        return (
            f"{where}: policy, schema {policy.schema}, by adaspec {policy.adaspec_version},"
            f" {len(found.files)} files, {_size(size)}"
            f"{''.join(f', {part}' for part in made if part)}; {sound}"
        )
    manifest = found.manifest
    rows = "requests" if manifest.kind == "dense" else "steps"
    tokens = sum(workload.output_tokens or 0 for workload in found.workloads)
    made = [
        f"{tokens:,} output tokens" if tokens else "",
        f"target {manifest.target}" if manifest.target else "",
        f"drafter {manifest.drafter}" if manifest.drafter else "",
        f"cap {manifest.neural_cap}" if manifest.neural_cap else "",
        f"by {manifest.engine} {manifest.engine_version or ''}".rstrip() if manifest.engine else "",
        "scrambled" if manifest.scrambled else "",
        "synthetic" if manifest.synthetic else "",
    ]
    about = "".join(f", {part}" for part in made if part)
    shards = "shard" if found.shards == 1 else "shards"
    return (
        f"{where}: {manifest.kind} trace, schema {manifest.schema}, {found.rows:,} {rows} in"
        f" {found.shards} {shards}, {_size(found.bytes)}{about}; {sound}"
    )


def _trace_table(found: TraceInspection) -> Table:
    logged = found.manifest.kind == "logged"
    # Narrow enough that eighty columns hold it unfolded.
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("workload", overflow="fold")
    for heading in ("requests", "steps" if logged else "paired"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    for heading in ("drafts", "accepted", ">= 1", "censored"):
        table.add_column(heading, justify="right", no_wrap=True)
    if logged:
        table.add_column("draft_len", justify="right", no_wrap=True)
    for workload in found.workloads:
        about = workload.document()
        first = [
            escape(printable(about["workload"])),
            _count(about["requests"]),
            _count(about["steps"] if logged else about["paired"]),
        ]
        sources = about["sources"] or [None]
        for source in sources:
            cells = _source_cells(source, logged)
            table.add_row(*first, *cells)
            first = [""] * len(first)
    return table


def _source_cells(source: dict[str, Any] | None, logged: bool) -> list[str]:
    if source is None:
        return ["-"] * (6 if logged else 5)
    cells = [
        source["source"],
        _count(source["drafts"]),
        _number(source["accepted_mean"]),
        _share(source["accepted_share_at_least_1"]),
        _share(source["censored_share"]),
    ]
    return [*cells, _number(source["draft_len_mean"])] if logged else cells


def _cost_table(found: CostInspection) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    document = found.document()
    fit = document["fit"]
    for name, value in document["cost"].items():
        if name in ("name", "target", "hardware"):
            continue
        shown = f"{value:.6g}" if isinstance(value, float) else str(value if value != () else "-")
        remark = ""
        if fit is not None and name in fit["standard_errors_s"]:
            remark = f"+- {fit['standard_errors_s'][name]:.2g}"
        if fit is not None and name in fit["not_identified"]:
            remark = f"not identified: {fit['not_identified'][name]}"
        table.add_row(name, shown, escape(printable(remark)))
    if fit is not None:
        table.add_row(
            "held-out error",
            f"{fit['mean_error']:.1%}",
            f"median {fit['median_error']:.1%}, 95th percentile {fit['p95_error']:.1%},"
            f" {fit['held_out_points']} of {fit['points']} points",
        )
    return table


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} GB"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
