"""eval/gpu/short_run.sh: what need not travel stays behind, and comes back however it ends."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = Path("eval", "gpu", "short_run.sh")
MOST_BYTES = 16 << 20
"""A piece of 46 MiB travels with the checkout, and 64 MiB is all that may."""
pytestmark = pytest.mark.skipif(
    not (CHECKOUT / SCRIPT).is_file() or not shutil.which("git"), reason="needs eval/ and git"
)


def git(folder, *words):
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def script(folder, *words):
    command = ["bash", str(SCRIPT), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="needs a checkout")
def test_what_travels_leaves_room_for_a_piece():
    size, word, *_ = script(CHECKOUT, "size").stdout.split()
    assert word == "bytes"
    assert 1 << 20 < int(size) <= MOST_BYTES


@pytest.fixture
def folder(tmp_path):
    """A checkout with a report, a head's weights and a file that travels."""
    for name in ("eval/reports/a/report.json", "training/reference_pair/eagle3/w", "adaspec/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / SCRIPT).parent.mkdir()
    shutil.copy(CHECKOUT / SCRIPT, tmp_path / SCRIPT)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    git(tmp_path, *who, "commit", "-qm", "a")
    return tmp_path


def held(folder):
    """A `hold` that has taken out what it takes out."""
    command = ["bash", str(SCRIPT), "hold"]
    holding = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert "held for" in holding.stdout.readline()
    assert "bytes travel" in holding.stdout.readline()
    return holding


def travelling(folder):
    return git(folder, "ls-files", "--cached", "--others", "--exclude-standard").split()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL, None])
def test_what_was_held_is_back_however_it_ended(folder, end):
    exclude = folder / ".git" / "info" / "exclude"
    before, excluded = travelling(folder), exclude.read_text()
    holding = held(folder)
    assert travelling(folder) == ["adaspec/a.py", str(SCRIPT)]
    assert script(folder, "hold").returncode == 2
    if end is not None:
        os.kill(holding.pid, end)
        holding.wait(30)
    if end != signal.SIGTERM:
        assert script(folder, "restore").returncode == 0
    holding.wait(30)
    assert travelling(folder) == before
    assert git(folder, "status", "--porcelain") == ""
    assert exclude.read_text() == excluded
