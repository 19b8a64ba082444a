"""`adaspec profile`: measure this machine's step times and fit a cost model to them."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adaspec.cli.options import (
    check_drafter,
    draft_method_option,
    draft_option,
    engine_option,
    json_option,
    model_option,
    numbers_option,
    out_option,
    seed_option,
    whole_option,
)
from adaspec.cli.output import ProgressBar, cost_rows, print_json, remark, results, say
from adaspec.errors import CostError
from adaspec.evaluate.table import Table
from adaspec.files import check_writable
from adaspec.vllm.options import MAX_VERIFIED

if TYPE_CHECKING:
    from adaspec.bench.profile.profile import Profile


@click.command("profile")
@model_option
@draft_option("EAGLE, EAGLE-3 or MTP head, or a draft model; none: n-gram drafts alone.")
@draft_method_option
@out_option("COST.json", "The cost file.")
@numbers_option(
    "--batches",
    None,
    "Requests that decode together.  [default: 1,2,4,8,16; on a GPU 1,4,16,64,128]",
    most=4096,
)
@numbers_option("--contexts", "128,512,1k", "Tokens per request.", kilo=True)
@numbers_option("--neural-lens", "1,2,4,8", "Neural tokens per draft.", most=MAX_VERIFIED)
@numbers_option("--ngram-lens", "3,8,16", "Copied tokens per draft.", most=MAX_VERIFIED)
@whole_option(
    "--rounds",
    5,
    least=2,
    help="Visits of every batch and context; two steps of each plan are timed per visit.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    help="Begin no further round after so long; two are made in any case.  [default: no limit]",
)
@seed_option
@engine_option
@json_option("Print everything measured for machines.")
def command(
    model: str,
    draft: str | None,
    draft_method: str | None,
    out: Path,
    minutes: float | None,
    engine: dict[str, Any],
    as_json: bool,
    **lengths: Any,
) -> None:
    """Measure what a step takes on this machine, and fit a cost model to it.

    vLLM runs in this process with made-up prompts and drafts by forced plans: every batch, context,
    draft length and source in turn, in several rounds. A fifth of the kinds of step is held out of
    the fit and says how far it is off.

    Replays and training take the file as `--cost`, a server as its key `cost`.

    \b
    Example:
      adaspec profile --model M --draft EAGLE_HEAD -o cost.json
      adaspec eval traces --cost cost.json
    """
    check_drafter(draft, draft_method)
    if not out.parent.is_dir():
        raise click.BadParameter(f"{out}: no such folder to write to", param_hint="'-o'")
    check_writable(out, CostError)
    # Imported here because vLLM takes seconds to load, and --help should be quick.
    from adaspec.bench.profile.measurement import Grid
    from adaspec.bench.profile.profile import profile_machine
    from adaspec.cost.load import save_cost
    from adaspec.vllm.profiling import Subject

    subject = Subject(model, draft, engine, draft_method)
    grid = Grid(max_s=math.inf if minutes is None else 60 * minutes, **lengths)
    with ProgressBar() as bar:
        profile = profile_machine(subject, grid, bar)
    save_cost(profile.cost, out, profile.fit)
    if as_json:
        document = profile.document()
        document["files"] = {"cost": str(out)}
        print_json(document)
    else:
        _print(profile)
    for complaint in profile.complaints:
        remark(f"warning: {complaint}")
    remark(f"written: {out}")


def _print(profile: Profile) -> None:
    cost = profile.cost
    say(f"{cost.target} on {cost.hardware}, {profile.engine.get('dtype')}")
    by_source = ", ".join(f"{name} {error:.1%}" for name, error in profile.errors().items())
    noise = profile.noise
    of_loop = f"between repeats of a step; {noise.reference_spread:.1%} of a fixed loop"
    rows = [
        *cost_rows(asdict(profile.cost), asdict(profile.fit)),
        ["error by source", "", f"{by_source} (fitted steps included)"],
        ["noise", f"{noise.step_spread:.1%}", of_loop],
    ]
    Table("", [""] * 3, rows, 1).print(results())
    for name, why in profile.skipped.items():
        say(f"not measured: {name}: {why}")
