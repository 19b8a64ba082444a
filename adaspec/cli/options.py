"""The types of option values, and the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from adaspec.cost.engine import ASYNC, ENGINES
from adaspec.errors import AdaspecError
from adaspec.evaluate.options import ORDERS, RESAMPLES
from adaspec.records import parse_json
from adaspec.vllm.options import DRAFT_METHODS

Option = Callable[[Any], Any]
"""A decorator that adds an option to a command."""


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in a text, or a usage error."""
    try:
        parsed = parse_json(text, f"'{text}'", AdaspecError, "write it as JSON")
    except AdaspecError as error:
        raise click.BadParameter(str(error)) from None
    if not isinstance(parsed, dict):
        raise click.BadParameter(f"'{text}' is not a JSON object")
    return parsed


def whole_option(
    flag: str, default: int, least: int = 1, most: int | None = None, help: str | None = None
) -> Option:
    """An option that takes a whole number and shows its default."""
    kind = click.IntRange(least, most)
    return click.option(flag, type=kind, default=default, show_default=True, help=help)


def numbers_option(flag: str, default: str, help: str, most: int | None = None) -> Option:
    """An option that takes whole numbers from 1 to `most`; they are sorted, without repeats."""

    def read(text: str) -> tuple[int, ...]:
        numbers = set()
        for word in map(str.strip, text.split(",")):
            number = int(word) if word.isdecimal() else 0
            if number < 1 or (most is not None and number > most):
                reach = "1 up" if most is None else f"1 to {most}"
                raise click.BadParameter(
                    f"'{word}' in '{text}' is not a whole number from {reach}; "
                    "write for instance 1,8,32"
                )
            numbers.add(number)
        return tuple(sorted(numbers))

    return click.option(
        flag, type=read, metavar="N,N,..", default=default, show_default=True, help=help
    )


def out_option(metavar: str, help: str | None = None, required: bool = True) -> Option:
    """The option for the place that the command writes to."""
    kind = click.Path(path_type=Path)
    return click.option("-o", "--out", metavar=metavar, required=required, type=kind, help=help)


def draft_option(help: str) -> Option:
    """The option for the neural drafter."""
    return click.option("--draft", metavar="HEAD", help=help)


def force_option(help: str) -> Option:
    """The option to replace what is already there."""
    return click.option("--force", is_flag=True, help=help)


def json_option(help: str = "Print one JSON document for machines.") -> Option:
    """The option to print JSON instead of tables."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def replay_options(command: Any) -> Any:
    """The options of whatever replays: train, which judges its policy, and eval."""
    options = (
        click.option(
            "--exclude-request",
            "exclude_requests",
            metavar="W/ID",
            multiple=True,
            help="Leave a request out; may be repeated.",
        ),
        click.option(
            "--engine",
            type=click.Choice(ENGINES),
            default=ASYNC,
            show_default=True,
            help="The order of events: a sync engine decides each step when the last one's "
            "outcome is known, an async one prepares it before.",
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
        whole_option(
            "--orders",
            ORDERS,
            most=1000,
            help="Shuffled orders of requests that every figure is a mean over.",
        ),
        whole_option(
            "--resamples",
            RESAMPLES,
            least=0,
            most=10_000,
            help="Bootstrap replicates per interval; 0: no intervals.",
        ),
        click.option("--jobs", type=click.IntRange(min=0), default=0, show_default="one per core"),
    )
    for option in reversed(options):
        command = option(command)
    return command


model_option = click.option(
    "--model", metavar="M", required=True, help="The target: folder or hub id."
)
draft_method_option = click.option(
    "--draft-method",
    type=click.Choice(DRAFT_METHODS),
    help="What HEAD is, where neither its config nor its name says.",
)
seed_option = whole_option("--seed", 0, 0, 2**31 - 1)
engine_option = click.option(
    "--engine",
    metavar="JSON",
    type=json_object,
    default="{}",
    help="vLLM's own arguments, such as '{\"max_model_len\": 8192}'.",
)


def check_drafter(draft: str | None, draft_method: str | None) -> None:
    """Refuse a --draft-method without the --draft that it describes."""
    if draft is None and draft_method is not None:
        raise click.UsageError(f"--draft-method {draft_method} says what --draft is: name it too")
