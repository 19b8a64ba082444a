"""The `adaspec` command: its subcommands, and the exit code of each kind of failure."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence

import click

from adaspec import __version__
from adaspec.cli.group import LazyGroup
from adaspec.errors import AdaspecError, nearest

COMMANDS = {
    "import": ("adaspec.cli.import_command", "Make a trace of recordings from elsewhere."),
    "inspect": ("adaspec.cli.inspect_command", "Say what a trace, policy or cost file is."),
    "train": ("adaspec.cli.train_command", "Train a policy on recorded traces."),
    "eval": ("adaspec.cli.eval_command", "Compare policies with every baseline and bound."),
    "record": ("adaspec.cli.record_command", "Record a dense trace by shadow drafting in vLLM."),
    "profile": ("adaspec.cli.profile_command", "Measure this machine's step times: a cost model."),
    "doctor": ("adaspec.cli.doctor_command", "Say whether serving will work here, and if not why."),
    "bench": ("adaspec.cli.bench_command", "Measure how fast adaspec is here."),
}

OK, FAULT, USER_ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
"""Exit codes; the last two are those that a shell shows after SIGINT and SIGPIPE."""

_SYSTEM_ADVICE = {
    errno.ENOSPC: "free some space or write elsewhere",
    errno.EDQUOT: "free some of your quota or write elsewhere",
    errno.EACCES: "check its permissions or choose another path",
    errno.EPERM: "check its permissions or choose another path",
    errno.EROFS: "choose a path that can be written",
    errno.ENAMETOOLONG: "choose a shorter path",
}
"""Advice for errors of the operating system that the user can fix."""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
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
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run `adaspec ARGUMENTS` and return the exit code; failures go to stderr in one line."""
    if "_ADASPEC_COMPLETE" in os.environ:
        adaspec.main(prog_name="adaspec")
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
    except AdaspecError as error:
        _traceback_if_asked()
        return _fail(str(error), USER_ERROR)
    except Exception as error:
        _traceback_if_asked()
        if isinstance(error, OSError) and error.errno in _SYSTEM_ADVICE:
            _give_up_stdout()
            where = f"{error.filename}: " if error.filename is not None else ""
            what = os.strerror(error.errno)
            return _fail(f"{where}{what}: {_SYSTEM_ADVICE[error.errno]}", USER_ERROR)
        return _fail(
            f"{type(error).__name__}: {error} (this is a fault in adaspec, not yours; run it again"
            " with ADASPEC_TRACEBACK=1 and report what it prints)",
            FAULT,
        )
    return OK


def _usage(mistake: click.ClickException, arguments: Sequence[str]) -> str:
    """One line for a command line that does not parse, with the nearest name and the help page."""
    context: click.Context | None = getattr(mistake, "ctx", None)
    text = mistake.format_message()
    if context is None:
        # click does not say for every mistake which command it was.
        path = " ".join(["adaspec", *[name for name in arguments[:1] if name in COMMANDS]])
        return f"{text.rstrip('.')} (see '{path} --help')"
    command = context.command
    if isinstance(mistake, click.NoSuchOption):
        known = [name for option in command.get_params(context) for name in option.opts]
        text = f"no option '{mistake.option_name}'{nearest(mistake.option_name, known)}"
    elif isinstance(command, click.Group) and _names_no_command(mistake):
        text = f"no command given (commands: {', '.join(command.list_commands(context))})"
    return f"{text.rstrip('.')} (see '{context.command_path} --help')"


def _names_no_command(mistake: click.ClickException) -> bool:
    """Whether a group was called without a command; newer versions of click print its help."""
    return type(mistake).__name__ == "NoArgsIsHelpError" or mistake.message == "Missing command."


def _fail(text: str, code: int) -> int:
    """Write `adaspec: error: TEXT` as one line to standard error, and return the code."""
    # Imported here because it imports rich, and --help should be quick.
    from adaspec.cli.output import printable

    line = printable(" ".join(part.strip() for part in text.splitlines()))
    # Standard error may be closed, too.
    with contextlib.suppress(OSError):
        print(f"adaspec: error: {line}", file=sys.stderr, flush=True)
    return code


def _traceback_if_asked() -> None:
    if os.environ.get("ADASPEC_TRACEBACK"):
        traceback.print_exc(file=sys.stderr)


def _give_up_stdout() -> None:
    """Point a broken stdout at /dev/null, because the interpreter flushes it again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
