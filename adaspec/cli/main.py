"""The `adaspec` command: its subcommands, and the exit code of each kind of failure."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from adaspec.errors import GONE, AdaspecError, nearest, printable
from adaspec.version import __version__

COMMANDS = {
    "import": "Make a trace of recordings from elsewhere.",
    "inspect": "Say what a trace, policy or cost file is.",
    "train": "Train a policy on recorded traces.",
    "eval": "Compare policies with every baseline and bound.",
    "record": "Record what a drafter would have done with your prompts in vLLM.",
    "profile": "Measure this machine's step times: a cost model.",
    "doctor": "Say whether serving will work here, and if not why.",
}
"""What each does; `adaspec.cli.NAME_command` has it as `command`."""

OK, FAULT, USER_ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
"""Exit codes; the last two are those that a shell shows after SIGINT and SIGPIPE."""

_FULL = errno.ENOSPC, errno.EDQUOT
_FORBIDDEN = errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG
"""Errors of the operating system that the user can mend."""


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in their order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Import the command's module; an unknown one is refused with the nearest and all."""
        if cmd_name not in COMMANDS:
            raise click.UsageError(
                f"no command '{cmd_name}'{nearest(cmd_name, COMMANDS)} "
                f"(commands: {', '.join(COMMANDS)})"
            )
        command: click.Command = import_module(f"adaspec.cli.{cmd_name}_command").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the one-line helps without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
)
@click.version_option(__version__, prog_name="adaspec")
def adaspec() -> None:
    """Decide, per step and per request, which drafter speculates and how far.

    \b
    Example:
      adaspec eval eval/traces/reference-pair --policy hybrid-splice:4:20:2:2:5 -o report
    """


def main() -> None:
    """Run the command line and exit with 0, 2 for a user's mistake, or 1 for a fault of adaspec."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:  # by `nohup` it is ignored
            signal.signal(ending, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run `adaspec ARGUMENTS` and return the exit code; failures go to stderr in one line."""
    try:
        with adaspec.make_context("adaspec", list(arguments)) as context:
            adaspec.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _give_up_stdout()
        return BROKEN_PIPE
    except click.ClickException as mistake:
        return _fail(_usage(mistake, arguments), USER_ERROR)
    except Exception as error:
        if os.environ.get("ADASPEC_TRACEBACK"):
            traceback.print_exc(file=sys.stderr)
        if isinstance(error, AdaspecError):
            return _fail(str(error), USER_ERROR)
        if isinstance(error, OSError) and error.errno in _FULL + _FORBIDDEN:
            _give_up_stdout()
            where = f"{error.filename}: " if error.filename is not None else ""
            advice = "free some space, check permissions, or choose another path"
            return _fail(f"{where}{error.strerror}: {advice}", USER_ERROR)
        fault = "a fault in adaspec, not yours: report what ADASPEC_TRACEBACK=1 makes it print"
        return _fail(f"{type(error).__name__}: {error} ({fault})", FAULT)
    return OK


def _usage(mistake: click.ClickException, arguments: Sequence[str]) -> str:
    """One line for a command line that does not parse, with the command's help page."""
    text = mistake.format_message()
    if isinstance(mistake, click.NoSuchOption) and mistake.option_name in GONE:
        text = f"no such option: {mistake.option_name}{nearest(mistake.option_name, ())}"
    path = " ".join(["adaspec", *[name for name in arguments[:1] if name in COMMANDS]])
    return f"{text.rstrip('.')} (see '{path} --help')"


def _fail(text: str, code: int) -> int:
    """Write `adaspec: error: TEXT` as one line to standard error, and return the code."""
    line = printable(" ".join(part.strip() for part in text.splitlines()))
    # Standard error may be closed, too.
    with contextlib.suppress(OSError):
        print(f"adaspec: error: {line}", file=sys.stderr, flush=True)
    return code


def _give_up_stdout() -> None:
    """Point a broken stdout at /dev/null, because the interpreter flushes it again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
