"""`adaspec profile`: measure this machine's step times and fit a cost model to them."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from adaspec.cli.options import (
    check_drafter,
    draft_method_option,
    draft_option,
    engine_option,
    json_option,
    model_option,
    out_option,
)
from adaspec.cli.output import ProgressBar, cost_rows, print_json, remark, results, say
from adaspec.cost.builtin import DEFAULT
from adaspec.errors import CostError
from adaspec.evaluate.plain_table import Table
from adaspec.files import check_writable


@click.command("profile")
@model_option
@draft_option("EAGLE, EAGLE-3 or MTP head, or a draft model; none: n-gram drafts alone.")
@draft_method_option
@out_option("COST.json", "The cost file.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True, max=600),
    default=2.0,
    show_default=True,
    help="How long steps are timed, beside the engine's start.",
)
@engine_option
@json_option("Print everything measured for machines.")
def command(
    model: str,
    draft: str | None,
    draft_method: str | None,
    out: Path,
    minutes: float,
    engine: dict[str, Any],
    as_json: bool,
) -> None:
    """Measure what a step takes on this machine, and fit a cost model to it.

    vLLM runs in this process, with the model runner that would serve, and made-up steps: sizes in
    and beyond its CUDA graphs, contexts, and forwards of the drafter in turn. A fifth of the kinds
    of step is held out of a first fit and says how far it is off.

    A server without a key `cost` measures the same for some ten seconds as it starts. Replays and
    training take the file as `--cost`.

    \b
    Example:
      adaspec profile --model M --draft EAGLE_HEAD -o cost.json
      adaspec eval traces --cost cost.json
    """
    check_drafter(draft, draft_method)
    if math.isnan(minutes):
        raise click.BadParameter("nan is no number", param_hint="'--minutes'")
    if not out.parent.is_dir():
        raise click.BadParameter(f"{out}: no such folder to write to", param_hint="'-o'")
    check_writable(out, CostError)
    # Imported here because vLLM takes seconds to load, and --help should be quick.
    from adaspec.cost.load import save_cost
    from adaspec.vllm.profile import profile_machine

    with ProgressBar() as bar:
        profile = profile_machine(model, draft, draft_method, engine, minutes, bar)
    save_cost(profile.cost, out, profile.measured.fit)
    if as_json:
        document = profile.document()
        document["files"] = {"cost": str(out)}
        print_json(document)
    else:
        cost = profile.cost
        title = f"{cost.target} on {cost.hardware}, {profile.engine.get('dtype')}"
        say(f"{title}, model runner {profile.runner}")
        rows = cost_rows(asdict(cost), structs.asdict(profile.measured.fit))
        Table("", [""] * 3, rows, 1).print(results())
    for complaint in profile.complaints:
        remark(f"warning: {complaint}")
    remark(f"deciding was not measured: it takes what '{DEFAULT}' says of a GPU's kernels")
    remark(f"written: {out}")
