import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from adaspec.cli import inspect_command
from adaspec.cli.main import COMMANDS, run
from adaspec.errors import AdaspecError, TraceError


def refusal(number):
    return OSError(number, os.strerror(number), "/somewhere/report.json")


@pytest.mark.parametrize(
    ("error", "code", "parts"),
    [
        (TraceError("a/part-3.parquet row 17: no"), 2, ["error: a/part-3.parquet row 17: no"]),
        (AdaspecError("here:\n  this"), 2, ["error: here: this"]),
        (KeyError("lost"), 1, ["KeyError", "not yours", "ADASPEC_TRACEBACK=1"]),
        (KeyboardInterrupt(), 130, ["error: interrupted"]),
        (refusal(errno.ENOSPC), 2, ["error: /somewhere/report.json: No space", "free some space"]),
        (refusal(errno.ENAMETOOLONG), 2, ["/somewhere/report.json: ", "another path"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_error_is_one_line_and_the_exit_code_says_whose_it_is(
    capsys, monkeypatch, error, code, parts
):
    monkeypatch.delenv("ADASPEC_TRACEBACK", raising=False)
    monkeypatch.setattr(inspect_command, "inspect", Mock(side_effect=error))
    assert run(["inspect", "traces"]) == code
    out, line = capsys.readouterr()
    assert out == ""
    assert line.startswith("adaspec: ")
    assert line.count("\n") == 1
    assert all(part in line for part in parts)


def test_the_traceback_is_printed_where_it_was_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("ADASPEC_TRACEBACK", "1")
    run(["inspect", "nowhere"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def helped(output):
    """The exit code of --help that writes there, and what it says to standard error."""
    words = [sys.executable, "-m", "adaspec", "--help"]
    done = subprocess.run(words, stdout=output, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


def test_a_reader_that_leaves_early_ends_the_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    assert helped(writing) == (141, "")
    os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_standard_output_is_said_once():
    with Path("/dev/full").open("wb") as full:
        code, said = helped(full)
    assert (code, said.count("\n")) == (2, 1)
    assert "No space left on device" in said


def test_help_names_every_command_and_works_while_none_can_be_imported(capsys, monkeypatch):
    for name in COMMANDS:
        monkeypatch.setitem(sys.modules, f"adaspec.cli.{name}_command", None)
    for flag in ("--help", "-h"):
        assert run([flag]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert all(name in out and text in out for name, text in COMMANDS.items())
