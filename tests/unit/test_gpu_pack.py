"""eval/gpu/pack.py: what is split and joined is what it was, or an error says what is wrong."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

PACK = Path(__file__).resolve().parents[2] / "eval" / "gpu" / "pack.py"
pytestmark = pytest.mark.skipif(
    not PACK.is_file(), reason="needs eval/, which a source distribution leaves out"
)
MOST = 10_000


def pack(*words):
    """Run the script as a user does: with the standard library alone."""
    command = [sys.executable, "-S", str(PACK), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path):
    """Files of many sizes: empty, as large as pieces, larger than several."""
    made = tmp_path / "folder"
    draw = random.Random(0)
    for at, size in enumerate((0, 1, MOST - 1, MOST, 3 * MOST + 7)):
        path = made / f"part {at % 2}" / f"file-{at}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(size))
    return made


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def pieces(folder, tmp_path):
    done = pack("split", folder, "-o", tmp_path / "pieces", "--piece-bytes", MOST)
    assert done.returncode == 0, done.stderr
    return tmp_path / "pieces"


def test_what_was_split_is_joined_as_it_was(folder, pieces, tmp_path):
    sizes = [path.stat().st_size for path in sorted(pieces.glob("piece-*"))]
    assert len(sizes) > 4
    assert max(sizes) <= MOST
    assert all(size == MOST for size in sizes[:-1])
    done = pack("join", pieces, "-o", tmp_path / "joined")
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "joined") == files_of(folder)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("piece-0002", lambda path: path.write_bytes(bytes(MOST)), "piece-0002 is damaged"),
        ("piece-0002", lambda path: os.truncate(path, MOST - 1), "piece-0002 is damaged"),
        ("piece-0002", lambda path: path.unlink(), "piece-0002 is missing"),
        ("pieces.json", lambda path: path.unlink(), "pieces.json"),
    ],
    ids=["damaged", "cut short", "missing", "no manifest"],
)
def test_a_piece_that_is_not_whole_is_named_and_nothing_is_written(
    pieces, tmp_path, name, change, said
):
    change(pieces / name)
    done = pack("join", pieces, "-o", tmp_path / "joined")
    assert done.returncode == 2
    assert said in done.stderr
    assert "piece-0001" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pieces"]


def test_pieces_of_60_mb_at_most_are_put_into_a_new_folder_elsewhere(folder, pieces, tmp_path):
    for out, most, said in (
        (tmp_path / "new", 60_000_001, "60000000"),
        (pieces, MOST, str(pieces)),
        (folder / "inside", MOST, str(folder / "inside")),
    ):
        done = pack("split", folder, "-o", out, "--piece-bytes", most)
        assert done.returncode == 2
        assert said in done.stderr
    assert not (tmp_path / "new").exists()
