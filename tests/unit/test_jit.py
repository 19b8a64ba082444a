import os

import pytest
from checkout import run_python

pytestmark = pytest.mark.slow

LOOP = """
import sys
from numba.core import caching
caching.CacheImpl._locator_classes = [getattr(caching, sys.argv[1])]
from adaspec.draft import matches  # any module that compiles at its import
from adaspec.jit import compiled

@compiled
def doubled(number):
    return 2 * number

print(doubled(21))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a loop for which numba looks for folders in one way alone."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    known = {"PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(tmp_path), "cwd": tmp_path}
    return lambda locator, **named: run_python("-P", script, locator, **known, **named)


@pytest.mark.parametrize(
    ("locator", "named"),
    [("UserProvidedCacheLocator", {}), ("UserWideCacheLocator", {"XDG_CACHE_HOME": "cache"})],
    ids=["no folder can be written", "the folder is below the working one"],
)
def test_without_a_folder_of_its_own_code_is_compiled_anew_which_is_said_once(run, locator, named):
    done = run(locator, **named)
    assert done.stdout == "42\n"
    assert done.stderr.count("\n") == 1
    assert "NUMBA_CACHE_DIR" in done.stderr


def test_code_older_than_the_sources_is_compiled_again(run, tmp_path):
    named = {"NUMBA_CACHE_DIR": str(tmp_path / "named")}
    run("UserProvidedCacheLocator", **named)
    (code, *_) = (tmp_path / "named").rglob("loop.doubled*.nbi")
    # Such a file names types of modules that may be gone: to load it would fail.
    code.write_bytes(b"from an older adaspec")
    os.utime(code, (0, 0))
    run("UserProvidedCacheLocator", **named)
    assert code.read_bytes() != b"from an older adaspec"
