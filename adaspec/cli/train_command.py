"""`adaspec train`: traces in, a policy's folder out."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from adaspec.cli.eval_command import LARGEST_CONCURRENCY
from adaspec.cli.numbers import WholeNumbers
from adaspec.cli.output import ProgressBar, print_json, remarks
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.evaluate.options import CONCURRENCY, ORDERS, RESAMPLES, Options


@click.command("train", epilog="Example: adaspec train traces -o policy --seed 7")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", metavar="DIR", required=True, type=click.Path(path_type=Path), help="The policy."
)
@click.option("--cost", metavar="NAME|FILE", default=DEFAULT, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option(
    "--concurrency",
    type=WholeNumbers(LARGEST_CONCURRENCY),
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
@click.option("--force", is_flag=True, help="Replace a policy that is there already.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary for machines.")
def command(
    traces: tuple[Path, ...],
    out: Path,
    cost: str,
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
    """
    # Imported here: LightGBM and numba take seconds to load, --help should not.
    from adaspec.policy.artifact import check_destination
    from adaspec.train.cluster import Cluster
    from adaspec.train.logged_recipe import LoggedProduct, are_logged, train_logged
    from adaspec.train.recipe import Product, train_policy

    options = Options(
        concurrency=concurrency, orders=orders, resamples=resamples, seed=seed, jobs=jobs
    )
    product: Product | LoggedProduct
    check_destination(out, force)
    with contextlib.ExitStack() as open_things:
        cluster = None
        if dask is not None:
            cluster = open_things.enter_context(Cluster(dask, lambda what: remarks().print(what)))
        bar = open_things.enter_context(ProgressBar())
        if are_logged(traces):
            product = train_logged(
                traces, out, load_cost(cost), options, exclude, force, bar, cluster
            )
        else:
            product = train_policy(
                traces, out, load_cost(cost), options, exclude, allow_mixed, force, bar, cluster
            )
    if as_json:
        print_json(product.document())
    click.echo(f"{out}: a policy; what it gains stands in {out / 'CARD.md'}", err=True)
