"""`adaspec inspect`: say what a path holds, how large it is, and whether it is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adaspec.cli.options import json_option
from adaspec.cli.output import ProgressBar, print_cost, print_json, results, say
from adaspec.errors import shown
from adaspec.evaluate.inspection import inspect
from adaspec.evaluate.plain_table import NULL, Table, decimal, percent


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def command(path: Path, as_json: bool) -> None:
    """Say what the trace, policy or cost file at PATH is, how large, and whether sound.

    Every row of a trace is read and checked. Exit code 2 where something is wrong.

    \b
    Example:
      adaspec inspect traces
      adaspec inspect cost.json --json
    """
    with ProgressBar() as bar:
        document = inspect(path, bar)
    if as_json:
        print_json(document)
        return
    what = document["what"]
    size, sound = f"{document['bytes']:,} bytes", "sound" if document["sound"] else "not whole"
    say(f"{document['path'] or 'builtin'}: {what}, {size}, {sound}")
    if what == "cost":
        print_cost(document["cost"], document["fit"])
    else:
        facts = {name: document[name] for name in ("rows", "shards") if name in document}
        facts |= document["manifest"]
        known = [[name, shown(value)] for name, value in facts.items() if value is not None]
        Table("", [""] * 2, known, 2).print(results())
    if what == "trace":
        _trace_table(document).print(results())
    for warning in document["warnings"]:
        say(f"warning: {warning}")


def _trace_table(document: dict[str, Any]) -> Table:
    rows = []
    for workload in document["workloads"]:
        first = [workload["workload"], *(f"{workload[key]:,}" for key in ("requests", "paired"))]
        for source in workload["sources"] or [{"source": NULL, "drafts": 0}]:
            accepted = decimal(source.get("accepted_mean"))
            some = percent(source.get("accepted_share_at_least_1"), 1)
            rows.append([*first, source["source"], f"{source['drafts']:,}", accepted, some])
            first = [""] * len(first)
    heads = ("workload", "requests", "paired", "source", "drafts", "accepted", ">= 1")
    return Table("", heads, rows)
