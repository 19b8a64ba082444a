"""Compiled code is kept where it can be, and never where others could have put it."""

import os
from pathlib import Path

import pytest
from checkout import run_python

pytestmark = pytest.mark.slow

LOOP = """
from numba.core import caching
caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator]
from adaspec.draft import positions  # any module that compiles at its import
from adaspec.jit import compiled

@compiled
def doubled(number):
    return 2 * number

print(doubled(21), doubled.stats.cache_path)
"""


@pytest.fixture
def temporary(tmp_path):
    """A folder for temporary files that all may write to."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def run(tmp_path, temporary, monkeypatch):
    """Runs a loop where temporary files are there, and caches where these variables say."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    known = {"PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(temporary)}
    return lambda **named: run_python("-P", script, TMPDIR=str(temporary), **known, **named)


def test_where_numba_finds_no_place_code_is_kept_privately_which_is_said_once(run, temporary):
    said = [run() for _ in range(2)]
    folder = temporary / f"adaspec-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbi"))
    (old,) = folder.rglob("loop.doubled*.nbi")
    stale = old.with_name("stale.nbi")
    stale.touch()
    os.utime(stale, (0, 0))
    run()
    assert old.exists()
    assert not stale.exists()
    for done in said:
        number, path = done.stdout.split()
        assert number == "42"
        assert Path(path).parent == folder
    assert said[0].stderr.count("\n") == 1
    assert f"compiled code is kept in {folder}" in said[0].stderr
    assert said[1].stderr == ""


@pytest.mark.parametrize(
    "prepare",
    [
        lambda folder: (folder.mkdir(0o700), folder.chmod(0o770)),
        lambda folder: (folder.with_name("other").mkdir(0o700), folder.symlink_to("other")),
        lambda folder: folder.parent.chmod(0o777),
        lambda folder: folder.touch(),
        lambda folder: (folder.mkdir(0o700), os.chown(folder, 65534, 65534)),
    ],
    ids=["others may write", "leads elsewhere", "others may rename", "is a file", "is another's"],
)
def test_a_folder_that_others_could_fill_is_not_used(run, temporary, prepare):
    try:
        prepare(temporary / f"adaspec-{os.geteuid()}")
    except PermissionError:
        pytest.skip("only root can give a folder away")
    done = run()
    assert done.stdout == "42 None\n"
    assert done.stderr.splitlines()[-1].startswith("adaspec: functions are compiled anew")
    assert not list(temporary.rglob("*.nb?"))


def test_code_of_an_older_adaspec_is_dropped_from_a_folder_that_the_user_named(run, tmp_path):
    run(NUMBA_CACHE_DIR=str(tmp_path / "named"))
    (code, *_) = (tmp_path / "named").rglob("loop.doubled*.nbi")
    # Such a file names types of modules that may be gone: to load it would fail.
    code.write_bytes(b"from an older adaspec")
    os.utime(code, (0, 0))
    run(NUMBA_CACHE_DIR=str(tmp_path / "named"))
    assert code.read_bytes() != b"from an older adaspec"
