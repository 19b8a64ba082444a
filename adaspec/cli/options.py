"""The types of option values, and the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from adaspec.cost import ASYNC, ENGINES
from adaspec.cost.load import DEFAULT
from adaspec.errors import AdaspecError
from adaspec.evaluate.options import LOADS, MAX_SEED, ORDERS, RESAMPLES
from adaspec.records import parse_json
from adaspec.vllm.options import DRAFT_METHODS

Option = Callable[[Any], Any]
FOLDER = click.Path(path_type=Path)


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in a text."""
    parsed = parse_json(text, f"'{text}'", AdaspecError, "write it as JSON")
    if not isinstance(parsed, dict):
        raise click.BadParameter(f"'{text}' is not a JSON object")
    return parsed


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas, or a usage error."""
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter(f"'{text}' is no list of whole numbers, as 1,8,32 is") from None


def out_option(metavar: str, help: str | None = None, required: bool = True) -> Option:
    """The option for the place that the command writes to."""
    return click.option("-o", "--out", metavar=metavar, required=required, type=FOLDER, help=help)


def drafter_options(model_required: bool = True) -> Option:
    """The options for the target and its neural drafter."""
    return _together(
        click.option(
            "--model", metavar="M", required=model_required, help="The target: folder or hub id."
        ),
        click.option(
            "--draft",
            metavar="HEAD",
            help="Its EAGLE, EAGLE-3, MTP, DFlash or DSpark head, or a draft model; "
            "none: n-gram alone.",
        ),
        click.option(
            "--draft-method",
            type=click.Choice(DRAFT_METHODS),
            help="What HEAD is, where neither its config nor its name says.",
        ),
    )


def check_drafter(draft: str | None, draft_method: str | None) -> None:
    """Refuse a --draft-method without the --draft that it describes."""
    if draft is None and draft_method is not None:
        raise click.UsageError(f"--draft-method {draft_method} says what --draft is: name it too")


def _together(*options: Option) -> Option:
    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document for machines."
)
force_option = click.option("--force", is_flag=True, help="Replace what is there already.")
seed_option = click.option("--seed", type=click.IntRange(0, MAX_SEED), default=0, show_default=True)
engine_option = click.option(
    "--engine",
    metavar="JSON",
    type=json_object,
    default="{}",
    help="vLLM's own arguments, such as '{\"max_model_len\": 8192}'.",
)
replay_options = _together(
    click.argument("traces", nargs=-1, required=True, type=FOLDER),
    click.option(
        "--cost",
        metavar="NAME|FILE",
        show_default=DEFAULT,
        help="What a step takes: a builtin machine, or your own JSON file.",
    ),
    click.option(
        "--concurrency",
        type=numbers,
        metavar="N,N,..",
        default=LOADS,
        show_default=True,
        help="Requests running at once.",
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default=ASYNC,
        show_default=True,
        help="The order of events: a sync engine decides each step when the last one's outcome is "
        "known, an async one prepares it before.",
    ),
    click.option(
        "--exclude-request",
        "exclude_requests",
        metavar="W/ID",
        multiple=True,
        help="Leave a request out; may be repeated.",
    ),
    click.option(
        "--free-decisions", is_flag=True, help="Show figures as if deciding took no time."
    ),
    click.option(
        "--no-prefill",
        "prefill",
        flag_value=False,
        default=True,
        help="Show figures as if reading prompts took no time.",
    ),
    click.option(
        "--max-step-ms",
        type=float,
        help="The policy plans no step that takes longer, prompts included.",
    ),
    click.option(
        "--orders",
        type=int,
        default=ORDERS,
        show_default=True,
        help="Shuffled orders of requests that every figure is a mean over.",
    ),
    click.option(
        "--resamples",
        type=int,
        default=RESAMPLES,
        show_default=True,
        help="Bootstrap replicates per interval; 0: no intervals.",
    ),
    seed_option,
    click.option("--jobs", type=int, default=0, show_default="one per core"),
    force_option,
    json_option,
)
"""The options of whatever replays: train, which judges its policy, and eval."""
