"""Compiled code is kept where it can be, and never where others could have put it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]

LOOP = """
from adaspec.draft import positions  # any module that compiles at its import
from adaspec.jit import compiled

@compiled
def doubled(number):
    return 2 * number

print(doubled(21), doubled.stats.cache_path)
"""

WITHOUT_LOCATORS = """
from numba.core import caching
caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator]
"""


@pytest.fixture
def temporary(tmp_path):
    """A folder for temporary files that all may write to."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def run(command, temporary, cache=None):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
    }
    environment |= {"TMPDIR": str(temporary), "PYTHONPATH": str(CHECKOUT)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(temporary)}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-P", *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(WITHOUT_LOCATORS + LOOP)
    return path


def test_where_numba_finds_no_place_code_is_kept_privately_which_is_said_once(script, temporary):
    said = [run([script], temporary) for _ in range(2)]
    folder = temporary / f"adaspec-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbi"))
    (old,) = folder.rglob("loop.doubled*.nbi")
    stale = old.with_name("stale.nbi")
    stale.touch()
    os.utime(stale, (0, 0))
    run([script], temporary)
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
def test_a_folder_that_others_could_fill_is_not_used(script, temporary, prepare):
    try:
        prepare(temporary / f"adaspec-{os.geteuid()}")
    except PermissionError:
        pytest.skip("only root can give a folder away")
    done = run([script], temporary)
    assert done.stdout == "42 None\n"
    assert done.stderr.splitlines()[-1].startswith("adaspec: functions are compiled anew")
    assert not list(temporary.rglob("*.nb?"))


def test_code_of_an_older_adaspec_is_dropped_from_a_folder_that_the_user_named(
    script, temporary, tmp_path
):
    run([script], temporary, cache=tmp_path / "named")
    (code, *_) = (tmp_path / "named").rglob("loop.doubled*.nbi")
    # Such a file names types of modules that may be gone: to load it would fail.
    code.write_bytes(b"from an older adaspec")
    os.utime(code, (0, 0))
    run([script], temporary, cache=tmp_path / "named")
    assert code.read_bytes() != b"from an older adaspec"
