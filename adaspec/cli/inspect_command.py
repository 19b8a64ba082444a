"""`adaspec inspect`: say what a path holds, how large it is, and whether it is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adaspec.cli.options import json_option
from adaspec.cli.output import ProgressBar, cost_rows, print_json, results, say
from adaspec.evaluate.inspection import inspect
from adaspec.evaluate.table import NULL, Table, decimal, percent


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@json_option()
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
    describe = {"trace": _describe_trace, "policy": _describe_policy, "cost": _describe_cost}
    parts = [*describe[document["what"]](document), "sound" if document["sound"] else "not whole"]
    say(f"{document['path'] or 'builtin'}: {', '.join(filter(None, parts))}")
    if document["what"] == "trace":
        _trace_table(document).print(results())
    elif document["what"] == "cost":
        Table("", [""] * 3, cost_rows(document["cost"], document["fit"]), 1).print(results())
    for warning in document["warnings"]:
        say(f"warning: {warning}")


def _describe_cost(document: dict[str, Any]) -> list[str]:
    cost = document["cost"]
    of = " on ".join(part for part in (cost["target"], cost["hardware"]) if part)
    return [f"cost model '{cost['name']}'{f' of {of}' if of else ''}"]


def _describe_policy(document: dict[str, Any]) -> list[str]:
    policy = document["manifest"]
    return [
        f"policy, schema {policy['schema']}, by adaspec {policy['adaspec_version']}",
        f"{len(document['files'])} files, {document['bytes'] / 1e6:.2f} MB",
        f"sources {', '.join(policy['sources'])}",
        *_models(policy),
        f"features {policy['fingerprint']}",
        f"{len(policy['training_requests']):,} training requests",
    ]


def _describe_trace(document: dict[str, Any]) -> list[str]:
    manifest = document["manifest"]
    rows = "requests" if manifest["kind"] == "dense" else "steps"
    by = f"by {manifest['engine']} {manifest['engine_version'] or ''}".rstrip()
    size = f"{document['bytes'] / 1e6:.2f} MB"
    return [
        f"{manifest['kind']} trace, schema {manifest['schema']}",
        f"{document['rows']:,} {rows} in {document['shards']} shards, {size}",
        *_models(manifest),
        f"cap {manifest['neural_cap']}" if manifest["neural_cap"] else "",
        by if manifest["engine"] else "",
        "synthetic" if manifest["synthetic"] else "",
    ]


def _models(manifest: dict[str, Any]) -> list[str]:
    return [f"{what} {manifest[what]}" for what in ("target", "drafter") if manifest[what]]


def _trace_table(document: dict[str, Any]) -> Table:
    counted = "steps" if document["manifest"]["kind"] == "logged" else "paired"
    rows = []
    for workload in document["workloads"]:
        first = [workload["workload"], *(f"{workload[key]:,}" for key in ("requests", counted))]
        for source in workload["sources"] or [{"source": NULL, "drafts": 0}]:
            accepted = decimal(source.get("accepted_mean"))
            some = percent(source.get("accepted_share_at_least_1"), 1)
            rows.append([*first, source["source"], f"{source['drafts']:,}", accepted, some])
            first = [""] * len(first)
    heads = ("workload", "requests", counted, "source", "drafts", "accepted", ">= 1")
    return Table("", heads, rows)
