"""The checkout that is tested, what it may lack, and Python as it finds it."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def need(folder):
    """Skip a test, or a file that is collected, where the checkout lacks this folder."""
    if not (CHECKOUT / folder).is_dir():
        reason = f"needs {folder}/, which a source distribution leaves out"
        pytest.skip(reason, allow_module_level=True)


def path_with(*folders):
    """A PYTHONPATH of these folders, the checkout and what is on it now."""
    path = [*map(str, folders), str(CHECKOUT), os.environ.get("PYTHONPATH")]
    return os.pathsep.join(filter(None, path))


def run(*words, code=0, cwd=CHECKOUT, timeout=None, **variables):
    """What a command says that finds this checkout; it has to end with this exit code."""
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path_with(), **variables},
        timeout=timeout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done


run_python = partial(run, sys.executable)
