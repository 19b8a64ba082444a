"""The reference page of all commands: `python docs/commands.py > docs/commands.md`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

import click

from adaspec.cli.main import adaspec

HEAD = """\
# Commands

Written by `make docs` from the commands' own `--help`. With `--json` only the result, for machines,
is on standard output. Exit codes: 0; 2 for a mistake of yours, and for what `doctor` finds amiss;
1 for a fault of adaspec's own (`ADASPEC_TRACEBACK=1` prints where).
"""


def commands(
    context: click.Context, command: click.Command
) -> Iterator[tuple[click.Context, click.Command]]:
    """All commands below a command, without the groups."""
    if not isinstance(command, click.Group):
        yield context, command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None:
            below = click.Context(inner, info_name=name, parent=context)
            yield from commands(below, inner)


def section(context: click.Context, command: click.Command) -> str:
    """A command's synopsis, description, example and options."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    words, _, example = inspect.cleandoc(command.help or "").partition("Example:\n")
    prose, *listed = words.split("\b\n")
    blocks = [block.rstrip().removesuffix("\b").rstrip() for block in listed]
    parts = [f"## {context.command_path}", f"`{usage}`", prose.strip().removesuffix("\b").rstrip()]
    parts += [f"```text\n{block}\n```" for block in blocks if block]
    if example:
        parts.append(f"```sh\n{textwrap.dedent(example).rstrip()}\n```")
    options = [option for option in command.params if isinstance(option, click.Option)]
    records = [record for option in options if (record := option.get_help_record(context))]
    rows = [
        "| `{}` | {} |".format(*(part.replace("|", "\\|") for part in record)) for record in records
    ]
    parts.append("\n".join(["| option | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """The full page as markdown."""
    root = click.Context(adaspec, info_name="adaspec", **adaspec.context_settings)
    return "\n".join([HEAD, *(section(*each) for each in commands(root, adaspec))])


if __name__ == "__main__":
    click.echo(page(), nl=False)
