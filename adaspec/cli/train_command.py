"""`adaspec train`: train a policy on traces and write its folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from adaspec.cli.options import (
    force_option,
    json_option,
    numbers_option,
    out_option,
    replay_options,
    seed_option,
)
from adaspec.cli.output import ProgressBar, print_json, publish, remark
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.evaluate.options import LOADS, MAX_CONCURRENCY, Options


@click.command(
    "train",
    epilog="Examples: adaspec train traces -o policy --seed 7; "
    "adaspec train traces --crossfit 5 -o report",
)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@out_option("DIR", "The policy; with --crossfit, a report.", required=False)
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
@click.option("--cost", metavar="NAME|FILE", show_default=DEFAULT)
@seed_option
@numbers_option("--concurrency", LOADS, "Loads to train, tune and judge at.", most=MAX_CONCURRENCY)
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
@replay_options
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Replay on the Dask cluster whose scheduler is there.",
)
@force_option("Replace a policy, or report, that is there already.")
@json_option("Print a summary, or the report, as JSON.")
def command(
    traces: tuple[Path, ...],
    out: Path | None,
    folds: int | None,
    crossfit_report: Path | None,
    dask: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a policy on the traces in the folders TRACES.

    30% of each workload's requests are kept back, all turns of a dialogue or none; the policy is
    judged on them, and its CARD.md says how it did. The same traces and seed give the same bytes.

    With --crossfit N nothing is kept back and no policy written: the report says how policies
    trained on N - 1 parts of the requests do on the part that they never saw. It is for the
    figures in a card, not for choosing what to train.
    """
    if folds is not None:
        if crossfit_report is not None or dask is not None:
            raise click.UsageError(
                "--crossfit writes no policy, and runs on this machine: leave --crossfit-report "
                "and --dask out"
            )
        _cross_fit(traces, folds, out, force, as_json, **options)
        return
    if out is None:
        raise click.UsageError("Missing option '-o': the folder that the policy goes to")
    # Imported here because LightGBM and numba take seconds to load, and --help should be quick.
    from adaspec.api import train_policy
    from adaspec.policy.artifact import check_destination
    from adaspec.train.cluster import Cluster

    check_destination(out, force)
    with contextlib.ExitStack() as stack:
        spread = None if dask is None else stack.enter_context(Cluster(dask, remark)).spread
        options |= {"spread": spread, "force": force, "crossfit_report": crossfit_report}
        bar = stack.enter_context(ProgressBar())
        product = train_policy(traces, out, progress=bar, **options)
    if as_json:
        print_json(product.document())
    if count := len(product.corpus.trained.unpaired):
        remark(f"of {count:,} requests without drafts only the text was used")
    remark(
        f"{out}: a policy. On the requests kept back, each opponent tuned on these in hindsight:"
    )
    for line in product.verdict:
        remark(f"  {line}")
    remark(f"All of it is in {out / 'CARD.md'}")


def _cross_fit(
    traces: tuple[Path, ...],
    folds: int,
    out: Path | None,
    force: bool,
    as_json: bool,
    cost: str | None,
    **options: Any,
) -> None:
    from adaspec.evaluate.evaluation import note_costs
    from adaspec.evaluate.report import EvaluationReport, check_destination
    from adaspec.train.crossfit import cross_fit

    if out is not None:
        check_destination(out, force)
    of_training = ("exclude_workloads", "exclude_requests", "general")
    chosen = {name: options.pop(name) for name in of_training}
    model = load_cost(cost or DEFAULT)
    with ProgressBar() as bar:
        report = cross_fit(traces, folds, model, Options(**options), progress=bar, **chosen)
    note_costs(report, model, given=cost is not None)
    publish(EvaluationReport(report), out, force, as_json)
