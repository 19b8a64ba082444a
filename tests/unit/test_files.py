import errno
import os
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from refusals import refusal

from adaspec.errors import AdaspecError
from adaspec.files import Kind, check_folder, check_writable, new_file, new_folder

refused = partial(refusal, AdaspecError)
BOOK = Kind("a book", "i.txt", lambda name: name in ("i.txt", "ii.txt"), AdaspecError)


def write(folder, text="new", force=False):
    with new_folder(folder, BOOK, force) as staged:
        (staged / "i.txt").write_text(text)
    return folder


def held(folder):
    return {str(each.relative_to(folder)) for each in folder.rglob("*")}


def test_a_free_place_is_taken_and_an_old_folder_replaced_with_force_only(tmp_path):
    folder = write(tmp_path / "deep" / "b", "old")
    (tmp_path / "latest").symlink_to("deep/b")
    assert "exists: choose another folder, or add --force" in refused(write, folder)
    assert (folder / "i.txt").read_text() == "old"
    write(tmp_path / "latest", force=True)
    assert (folder / "i.txt").read_text() == "new"
    assert held(tmp_path) == {"deep", "deep/b", "deep/b/i.txt", "latest"}


@pytest.mark.parametrize("theirs", ["thesis.tex", "deep/i.txt", "ii.txt/i.txt"])
@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_force_never_deletes_what_is_not_ours_even_if_it_came_meanwhile(tmp_path, moment, theirs):
    folder = write(tmp_path / "b", "old")

    def add():
        (folder / theirs).parent.mkdir(exist_ok=True)
        (folder / theirs).write_text("theirs")

    if moment == "before":
        add()
    with (
        pytest.raises(AdaspecError, match="--force will not replace it as a book"),
        new_folder(folder, BOOK, force=True) as staged,
    ):
        (staged / "i.txt").write_text("new")
        add()
    assert (folder / theirs).read_text() == "theirs"
    assert (folder / "i.txt").read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["b"]


def test_a_folder_without_the_mark_is_replaced_only_if_it_is_empty(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ii.txt").write_text("theirs")
    assert "holds no i.txt, so --force will not replace it" in refused(
        write, tmp_path / "b", force=True
    )
    (tmp_path / "b" / "ii.txt").unlink()
    write(tmp_path / "b", force=True)
    assert held(tmp_path) == {"b", "b/i.txt"}


def test_what_came_to_a_free_place_meanwhile_stays(tmp_path):
    with (
        pytest.raises(AdaspecError, match="came into being meanwhile, and is left as it is"),
        new_folder(tmp_path / "b", BOOK) as staged,
    ):
        (staged / "i.txt").write_text("mine")
        write(tmp_path / "b", "theirs")
    assert (tmp_path / "b" / "i.txt").read_text() == "theirs"
    assert held(tmp_path) == {"b", "b/i.txt"}


@pytest.mark.parametrize(
    ("code", "said"), [(errno.ENOSPC, "the disk is full: free"), (errno.EIO, "Input/output")]
)
def test_a_full_disk_leaves_the_old_file_and_folder(tmp_path, monkeypatch, code, said):
    folder, file = write(tmp_path / "b", "old"), tmp_path / "f"
    file.write_text("old")

    def write_file():
        with new_file(file, AdaspecError) as new:
            new.write(b"new")

    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(code, os.strerror(code))))
    assert f"{folder}: " in (message := refused(write, folder, force=True)) and said in message
    assert f"{file}: " in (message := refused(write_file)) and said in message
    monkeypatch.undo()
    assert (folder / "i.txt").read_text() == file.read_text() == "old"
    assert held(tmp_path) == {"b", "b/i.txt", "f"}
    write_file()
    assert file.read_text() == "new"


def test_a_place_that_cannot_be_filled_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    for name in ("file", "file/b", "x" * 300):
        assert str(tmp_path / name) in refused(check_folder, tmp_path / name, BOOK, True)
    assert "/proc/b: cannot be written" in refused(check_writable, Path("/proc/b"), AdaspecError)
    assert held(tmp_path) == {"file"}
