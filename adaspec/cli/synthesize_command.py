"""`adaspec synthesize`: write a trace of known truth, to try the other commands on."""

from __future__ import annotations

import json
from pathlib import Path

import click

from adaspec.trace.synthetic import MAX_REQUESTS, WORKLOADS, write_synthetic


@click.command("synthesize", epilog="Example: adaspec synthesize -o traces/synthetic --seed 7")
@click.option("-o", "--out", metavar="TRACES", required=True, type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option(
    "--requests",
    default=60,
    show_default=True,
    type=click.IntRange(1, MAX_REQUESTS),
    help="Requests per workload.",
)
@click.option("--force", is_flag=True, help="Replace a trace that is there already.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary for machines.")
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
