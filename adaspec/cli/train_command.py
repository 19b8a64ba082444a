"""`adaspec train`: train a policy on traces and write its folder."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from adaspec.cli.options import out_option, replay_options
from adaspec.cli.output import ProgressBar, print_json, publish, remark
from adaspec.cost.load import DEFAULT, load_cost
from adaspec.evaluate.options import Options
from adaspec.evaluate.selection import Wanted
from adaspec.files import check_folder


@click.command("train")
@out_option("DIR", "The policy; with --crossfit, a report.", required=False)
@click.option(
    "--crossfit",
    "folds",
    metavar="N",
    type=int,
    help="No policy, but a report: each of N parts judged by a model of the others.",
)
@click.option(
    "--exclude-workload",
    "exclude_workloads",
    metavar="W",
    multiple=True,
    help="Leave a workload out; may be repeated.",
)
@click.option(
    "--general",
    is_flag=True,
    help="A policy for any model, without token tables; traces may be of several.",
)
@click.option(
    "--dask", metavar="ADDRESS", help="Replay on the Dask cluster whose scheduler is there."
)
@replay_options
def command(
    traces: tuple[Path, ...],
    out: Path | None,
    folds: int | None,
    dask: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a policy on the traces in the folders TRACES.

    30% of each workload's requests are kept back, all turns of a dialogue or none; the policy is
    judged on them, and its CARD.md says how it did. The same traces and seed give the same bytes.

    With --crossfit N nothing is kept back and no policy written: the report says how policies
    trained on N - 1 parts of the requests do on the part that they never saw.

    \b
    Example:
      adaspec train traces -o policy --seed 7
      adaspec train traces --crossfit 5 -o report
    """
    # Imported here because LightGBM and numba take seconds to load, and --help should be quick.
    from adaspec.api import train_policy
    from adaspec.evaluate.report import KIND, EvaluationReport
    from adaspec.train.recipe import cross_fit, verdict
    from adaspec.train.trainer import Cluster

    if folds is not None:
        if dask is not None:
            raise click.UsageError("--crossfit runs on this machine: leave --dask out")
        if out is not None:
            check_folder(out, KIND, force)
        left_out = options.pop("exclude_requests"), options.pop("exclude_workloads")
        wanted = Wanted(exclude=left_out[0], exclude_workloads=left_out[1])
        cost, general = load_cost(options.pop("cost") or DEFAULT), options.pop("general")
        with ProgressBar() as bar:
            document = cross_fit(traces, folds, cost, Options(**options), wanted, general, bar)
        publish(EvaluationReport(document), out, force, as_json)
        return
    if out is None:
        raise click.UsageError("Missing option '-o': the folder that the policy goes to")
    cluster = nullcontext() if dask is None else Cluster(dask, remark)
    with cluster as found, ProgressBar() as bar:
        spread = None if found is None else found.spread
        made = train_policy(traces, out, spread=spread, force=force, progress=bar, **options)
    if as_json:
        print_json(made.report)
    if count := len(made.corpus.trained.unpaired):
        remark(f"of {count:,} requests without drafts only the text was used")
    remark(f"{out}: a policy. On the requests kept back, with opponents tuned in hindsight:")
    for line in verdict(made.report):
        remark(f"  {line}")
    remark(f"All of it is in {out / 'CARD.md'}")
