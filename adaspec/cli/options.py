"""What a command is told of the neural drafter beside its name."""

from __future__ import annotations

import click

from adaspec.vllm.options import DRAFT_METHODS

draft_method_option = click.option(
    "--draft-method",
    type=click.Choice(DRAFT_METHODS),
    help="What HEAD is, where neither its config nor its weights' names say.",
)


def check_drafter(draft: str | None, draft_method: str | None) -> None:
    """Refuse to be told what a drafter is that is not named."""
    if draft is None and draft_method is not None:
        raise click.UsageError(f"--draft-method {draft_method} says what --draft is: name it too")
