"""Command groups that load a command's module only when that command runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from adaspec.errors import nearest


class NamingGroup(click.Group):
    """A group that answers an unknown command with the nearest known one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with the nearest known command and the list of all."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            raise click.UsageError(
                f"no command '{args[0]}'{nearest(args[0], known)} (commands: {', '.join(known)})",
                ctx=ctx,
            )
        return super().resolve_command(ctx, args)


class LazyGroup(NamingGroup):
    """A group whose commands are named up front, and imported only when they are needed.

    `table` maps a command's name to (module, one-line help); the module's `command` is the command.
    """

    def __init__(self, table: Mapping[str, tuple[str, str]], **attrs: Any) -> None:
        super().__init__(**attrs)
        self.table = dict(table)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the table, in its order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in self.table:
            return None
        command = import_module(self.table[cmd_name][0]).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.table[cmd_name][0]}.command is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the one-line helps without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])
