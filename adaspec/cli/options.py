"""Options that several commands have alike: what is served, by which drafter, and how."""

from __future__ import annotations

import click

from adaspec.cli.objects import JsonObject
from adaspec.vllm.options import DRAFT_METHODS

model_option = click.option(
    "--model", metavar="M", required=True, help="The target: folder or hub id."
)
draft_method_option = click.option(
    "--draft-method",
    type=click.Choice(DRAFT_METHODS),
    help="What HEAD is, where neither its config nor its weights' names say.",
)

seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True
)
engine_option = click.option(
    "--engine",
    metavar="JSON",
    type=JsonObject(),
    default="{}",
    help="vLLM's own arguments, such as '{\"max_model_len\": 8192}'.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document for machines."
)


def check_drafter(draft: str | None, draft_method: str | None) -> None:
    """Refuse to be told what a drafter is that is not named."""
    if draft is None and draft_method is not None:
        raise click.UsageError(f"--draft-method {draft_method} says what --draft is: name it too")
