"""`adaspec synthesize`: write a trace of known truth, to try the other commands on."""

from __future__ import annotations

import json
from pathlib import Path

import click

from adaspec.cli.options import force_option, json_option, out_option, whole_option
from adaspec.trace.synthetic import MAX_REQUESTS, WORKLOADS, write_synthetic


@click.command("synthesize", epilog="Example: adaspec synthesize -o traces/synthetic --seed 7")
@out_option("TRACES")
@whole_option("--seed", 0, least=0)
@whole_option("--requests", 60, most=MAX_REQUESTS, help="Requests per workload.")
@force_option("Replace a trace that is there already.")
@json_option("Print a summary for machines.")
def command(out: Path, seed: int, requests: int, force: bool, as_json: bool) -> None:
    """Write a small SYNTHETIC trace: random text, and drafters that are right by a known law."""
    write_synthetic(out, seed, requests_per_workload=requests, force=force)
    workloads = {workload.name: requests for workload in WORKLOADS}
    if as_json:
        summary = {"trace": str(out), "seed": seed, "synthetic": True, "workloads": workloads}
        click.echo(json.dumps(summary))
        return
    names = ", ".join(workloads)
    click.echo(f"{out}: a synthetic trace, {requests:,} requests each of {names}", err=True)
