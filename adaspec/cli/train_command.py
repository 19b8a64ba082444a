"""`adaspec train`: traces in, a policy's folder out."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adaspec.cli.numbers import WholeNumbers
from adaspec.cli.output import ProgressBar, print_json, remarks
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.errors import TrainingError
from adaspec.evaluate.options import (
    CONCURRENCY,
    MAX_CONCURRENCY,
    ORDERS,
    RESAMPLES,
    Options,
)

if TYPE_CHECKING:
    from adaspec.places import Place


@click.command(
    "train",
    epilog="Examples: adaspec train traces -o policy --seed 7; "
    "adaspec train traces --crossfit 5 -o report",
)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The policy; with --crossfit, a report.",
)
@click.option(
    "--crossfit",
    "folds",
    metavar="N",
    type=click.IntRange(min=2),
    help="No policy, but a report: each of N parts judged by a model of the others.",
)
@click.option(
    "--crossfit-report",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A report of --crossfit on the same traces, for the card to show first.",
)
@click.option(
    "--ablations", is_flag=True, help="Also train without each part of the policy, for the card."
)
@click.option("--cost", metavar="NAME|FILE", show_default=DEFAULT)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option(
    "--concurrency",
    type=WholeNumbers(MAX_CONCURRENCY),
    default=CONCURRENCY,
    show_default="1,8,32,128",
    help="Loads to train, tune and judge at.",
)
@click.option(
    "--exclude-workload",
    "exclude",
    metavar="W",
    multiple=True,
    help="Leave a workload out; may be repeated.",
)
@click.option("--allow-mixed", is_flag=True, help="Train on several targets or drafters at once.")
@click.option("--orders", type=click.IntRange(1, 1000), default=ORDERS, show_default=True)
@click.option(
    "--resamples",
    type=click.IntRange(0, 10_000),
    default=RESAMPLES,
    show_default=True,
    help="Bootstrap replicates per interval of the card; 0: no intervals.",
)
@click.option("--jobs", type=click.IntRange(min=0), default=0, show_default="one per core")
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Run rollouts and large fits on the Dask cluster whose scheduler is there.",
)
@click.option("--force", is_flag=True, help="Replace a policy, or report, that is there already.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary, or the report, as JSON.")
def command(
    traces: tuple[Path, ...],
    out: Path | None,
    folds: int | None,
    crossfit_report: Path | None,
    ablations: bool,
    cost: str | None,
    seed: int,
    concurrency: tuple[int, ...],
    exclude: tuple[str, ...],
    allow_mixed: bool,
    orders: int,
    resamples: int,
    jobs: int,
    dask: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Train a policy on the traces in the folders TRACES, all dense or all logged.

    30% of each workload's requests are kept back; the policy is judged on them, and its CARD.md
    says how it did. Logged traces know only what was tried: a policy from them is judged by how
    well it foretells that. The same traces and seed give the same bytes.

    With --crossfit N nothing is kept back and no policy written: the report says how policies
    trained on N - 1 parts of the requests do on the part that they never saw. It is for the
    figures in a card, not for choosing what to train.
    """
    if folds is not None:
        if crossfit_report is not None:
            raise TrainingError(
                "--crossfit writes no policy, so no card for --crossfit-report to stand in: leave "
                "one of the two out"
            )
        if dask is not None:
            raise TrainingError("--crossfit runs on this machine: leave --dask out")
        place = None if out is None else _check_report(out, force)
        # Imported here: LightGBM and numba take seconds to load, --help should not.
        from adaspec.cli.reporting import publish
        from adaspec.evaluate.evaluation import note_costs
        from adaspec.evaluate.report import EvaluationReport
        from adaspec.train.crossfit import cross_fit

        options = Options(
            concurrency=concurrency, orders=orders, resamples=resamples, seed=seed, jobs=jobs
        )
        model = load_cost(cost or DEFAULT)
        with ProgressBar() as bar:
            found = cross_fit(traces, folds, model, options, exclude, allow_mixed, bar, ablations)
        note_costs(found.report, model, given=cost is not None)
        publish(EvaluationReport(found.report, found.selection.requests), place, as_json)
        return
    if out is None:
        raise click.UsageError("Missing option '-o': the folder that the policy goes to")
    from adaspec.api import train_policy
    from adaspec.policy.artifact import check_destination
    from adaspec.train.cluster import Cluster

    check_destination(out, force)
    with contextlib.ExitStack() as open_things:
        cluster = None
        if dask is not None:
            cluster = open_things.enter_context(Cluster(dask, lambda what: remarks().print(what)))
        product = train_policy(
            traces,
            out,
            cost=cost,
            seed=seed,
            concurrency=concurrency,
            exclude_workloads=exclude,
            allow_mixed=allow_mixed,
            orders=orders,
            resamples=resamples,
            crossfit_report=crossfit_report,
            ablations=ablations,
            jobs=jobs,
            cluster=cluster,
            force=force,
            progress=open_things.enter_context(ProgressBar()),
        )
    if as_json:
        print_json(product.document())
    click.echo(f"{out}: a policy; what it gains stands in {out / 'CARD.md'}", err=True)


def _check_report(out: Path, force: bool) -> Place:
    """The place for a report, refused before a long evaluation if none can go there."""
    from adaspec.evaluate.report import check_destination
    from adaspec.policy.artifact import CHECKSUMS, FOREST

    if any((out / name).exists() for name in (CHECKSUMS, FOREST)):
        raise TrainingError(
            f"{out}: is a policy's folder, and --crossfit writes a report, no policy: give -o "
            "another folder, or leave --crossfit out"
        )
    return check_destination(out, force)
