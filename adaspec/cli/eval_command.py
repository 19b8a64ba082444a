"""`adaspec eval`: compare policies with every baseline and bound, on recorded acceptance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adaspec.cli.options import FOLDER, out_option, replay_options
from adaspec.cli.output import ProgressBar, publish
from adaspec.evaluate.selection import MAX_OUTPUT
from adaspec.files import check_folder


@click.command("eval")
@click.option(
    "--policy",
    "policies",
    metavar="DIR|SPEC",
    multiple=True,
    help="What to judge; may be repeated. Specs: none, fixed:ngram:K:MIN, fixed:neural:K, "
    "hybrid:M:KN:KE, hybrid-splice:M:KN:KE:MX:KX and others, see docs/policies.md.",
)
@click.option("--workload", metavar="W", help="Evaluate this workload alone.")
@click.option(
    "--max-output-tokens",
    type=click.IntRange(min=1),
    default=MAX_OUTPUT,
    show_default=True,
    help="Leave longer outputs out.",
)
@click.option(
    "--include-training", is_flag=True, help="Also replay requests that a policy was trained on."
)
@click.option(
    "--warm",
    metavar="TRACES",
    multiple=True,
    type=FOLDER,
    help="Traces that had been answered before: whatever copies finds the last of these answers in "
    "the ring; may be repeated.",
)
@click.option(
    "--arrivals",
    metavar="SPEC|FILE",
    help="Requests come by themselves (an open loop): poisson:RATE, bursts:LOW:HIGH:SECONDS, or a "
    "file of times in seconds, one a line.",
)
@click.option(
    "--rate-scale", type=float, default=1.0, show_default=True, help="They come so much faster."
)
@click.option(
    "--max-num-seqs",
    type=int,
    default=256,
    show_default=True,
    help="So many run at once then, and others wait.",
)
@click.option(
    "--slo-ttft-ms",
    type=float,
    help="Compare by goodput: requests per second whose first token took no longer.",
)
@click.option("--slo-tpot-ms", type=float, help="The same for each token behind the first.")
@click.option("--latency", is_flag=True, help="Show latencies, too.")
@out_option("REPORT_DIR", "Write a report.", required=False)
@replay_options
def command(
    traces: tuple[Path, ...],
    out: Path | None,
    force: bool,
    as_json: bool,
    latency: bool,
    **options: Any,
) -> None:
    """Replay the traces in the folders TRACES under policies, every baseline and the oracle bounds.

    \b
    Example:
      adaspec eval traces --policy hybrid-splice:4:20:2:2:5 -o report
      adaspec eval traces --policy fixed:neural:3 --concurrency 1,8 --json
      adaspec eval traces --policy DIR --arrivals bursts:2:30:20 --slo-tpot-ms 10
    """
    # Imported here because numba and the replay take a second to load, and --help should be quick.
    from adaspec.api import evaluate_policies
    from adaspec.evaluate.report import KIND

    if out is not None:
        check_folder(out, KIND, force)
    with ProgressBar() as bar:
        report = evaluate_policies(traces, progress=bar, **options)
    publish(report, out, force, as_json, latency)
