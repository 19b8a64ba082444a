"""`adaspec eval`: compare policies with every baseline and bound, on recorded acceptance."""

from __future__ import annotations

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
    whole_option,
)
from adaspec.cli.output import ProgressBar, publish
from adaspec.cost.builtin import DEFAULT
from adaspec.evaluate.options import CAP, LOADS, MAX_CONCURRENCY
from adaspec.evaluate.selection import MAX_OUTPUT


def output_tokens(text: str | int) -> int | None:
    """A whole number, None for `none`, or a usage error."""
    if text == "none":
        return None
    if not str(text).isdecimal() or int(text) < 1:
        raise click.BadParameter(f"'{text}' is neither a whole number from 1 on nor 'none'")
    return int(text)


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "policies",
    metavar="DIR|SPEC",
    multiple=True,
    help="What to judge; may be repeated. Specs: none, fixed:ngram:K:MIN, fixed:neural:K, "
    "hybrid:M:KN:KE, hybrid-splice:M:KN:KE:MX:KX and others, see docs/policies.md.",
)
@click.option(
    "--cost",
    metavar="NAME|FILE",
    show_default=DEFAULT,
    help="What a step takes: a builtin machine, or your own JSON file.",
)
@numbers_option("--concurrency", LOADS, "Requests running at once.", most=MAX_CONCURRENCY)
@seed_option
@click.option("--workload", metavar="W", help="Evaluate this workload alone.")
@click.option(
    "--max-output-tokens",
    type=output_tokens,
    metavar="N|NONE",
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
    type=click.Path(path_type=Path),
    help="Traces that had been answered before: whatever copies finds the last of these answers in "
    "the ring; may be repeated.",
)
@replay_options
@whole_option("--cap", CAP, most=1000, help="Longest draft of anything evaluated.")
@out_option("REPORT_DIR", "Write a report.", required=False)
@force_option("Replace a report that is there already.")
@json_option("Print the report for machines.")
def command(
    traces: tuple[Path, ...], out: Path | None, force: bool, as_json: bool, **options: Any
) -> None:
    """Judge policies over the traces in the folders TRACES.

    They are replayed: every report holds no speculation, the best fixed, hybrid and static settings
    in hindsight, the baselines that adapt, and the oracle bounds, at each concurrency.

    \b
    Example:
      adaspec eval traces --policy hybrid-splice:4:20:2:2:5 -o report
      adaspec eval traces --policy fixed:neural:3 --concurrency 1,8 --json
    """
    # Imported here because numba and the replay take a second to load, and --help should be quick.
    from adaspec.api import evaluate_policies
    from adaspec.evaluate.report import check_destination

    if out is not None:
        check_destination(out, force)
    with ProgressBar() as bar:
        report = evaluate_policies(traces, progress=bar, **options)
    publish(report, out, force, as_json)
