"""`adaspec profile`: measure this machine's step times and fit a cost model to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from msgspec import structs

from adaspec.cli.options import (
    check_drafter,
    drafter_options,
    engine_option,
    json_option,
    out_option,
)
from adaspec.cli.output import ProgressBar, print_cost, print_json, remark, say
from adaspec.cost.load import DEFAULT
from adaspec.errors import CostError
from adaspec.files import check_writable


@click.command("profile")
@drafter_options()
@out_option("COST.json", "The cost file.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True, max=600),
    default=2.0,
    show_default=True,
    help="How long steps are timed, beside the engine's start.",
)
@engine_option
@json_option
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
    from adaspec.cost.load import save_cost
    from adaspec.vllm.commands import profile_machine

    with ProgressBar() as bar:
        profile = profile_machine(model, draft, draft_method, engine, minutes, bar)
    cost, fit = profile.measured.cost, profile.measured.fit
    save_cost(cost, out, fit)
    if as_json:
        print_json(profile.document())
    else:
        say(f"{profile.engine.get('dtype')}, model runner {profile.runner}")
        print_cost(structs.asdict(cost), structs.asdict(fit))
    for complaint in profile.complaints:
        remark(f"warning: {complaint}")
    remark(f"deciding was not measured: it takes what '{DEFAULT}' says of a GPU's kernels")
    remark(f"written: {out}")
