"""Nothing that came to a place after it was looked at is ever deleted, whoever is killed when."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adaspec import places, staging
from adaspec.errors import AdaspecError

BOOK = staging.Contents("a book", "i.txt", lambda name: name in ("i.txt", "ii.txt"), AdaspecError)


@pytest.fixture(params=["the system exchanges", "the system cannot"])
def either_way(request, monkeypatch):
    """With the renames that Linux does in one piece, and without."""
    if request.param == "the system cannot":
        monkeypatch.setattr(places, "_renameat2", lambda *_: False)


def book(folder, text):
    folder.mkdir()
    (folder / "i.txt").write_text(text)
    return folder


def write(place, text="new"):
    with staging.whole_folder(place, AdaspecError) as staged:
        (staged / "i.txt").write_text(text)


def checked(folder, force=False):
    return staging.check_destination(folder, force, BOOK)


def refused(folder, force=False):
    with pytest.raises(AdaspecError) as caught:
        checked(folder, force)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused_at_the_end(place):
    """What is said, and the folder that the finished work was left in."""
    with pytest.raises(AdaspecError) as caught:
        write(place)
    said = str(caught.value)
    (left,) = place.path.parent.glob(f"{place.path.name}.*.finished")
    assert str(left) in said
    assert "\n" not in said
    assert (left / "i.txt").read_text() == "new"
    assert not list(place.path.parent.glob(".*"))
    return said


def test_a_free_place_is_taken_and_an_old_folder_replaced(tmp_path, either_way):
    write(checked(tmp_path / "b"), "old")
    write(checked(tmp_path / "b", force=True))
    assert (tmp_path / "b" / "i.txt").read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["b"]


def test_what_came_to_a_free_place_meanwhile_stays(tmp_path, either_way):
    place = checked(tmp_path / "b")
    book(tmp_path / "b", "theirs")
    assert "came into being meanwhile" in refused_at_the_end(place)
    assert (tmp_path / "b" / "i.txt").read_text() == "theirs"


def test_of_two_writers_at_once_the_later_one_deletes_nothing(tmp_path, either_way):
    book(tmp_path / "b", "old")
    one, other = checked(tmp_path / "b", force=True), checked(tmp_path / "b", force=True)
    write(one, "first")
    assert "was changed meanwhile, and is left" in refused_at_the_end(other)
    assert (tmp_path / "b" / "i.txt").read_text() == "first"


def add(folder):
    (folder / "ii.txt").write_text("theirs")


def rewrite(folder):
    (folder / "i.txt").write_text("theirs")


def swap(folder):
    folder.rename(folder.parent / "moved")
    book(folder, "theirs")


def link(folder):
    folder.rename(folder.parent / "moved")
    folder.symlink_to("moved")


@pytest.mark.parametrize("change", [add, rewrite, swap, link])
def test_a_folder_that_changed_meanwhile_is_left_as_it_is(tmp_path, change, either_way):
    place = checked(book(tmp_path / "b", "old"), force=True)
    change(tmp_path / "b")
    after = {path: path.read_text() for path in (tmp_path / "b").iterdir()}
    assert "changed meanwhile" in refused_at_the_end(place)
    assert {path: path.read_text() for path in (tmp_path / "b").iterdir()} == after


def test_a_folder_that_was_removed_meanwhile_does_not_come_back_as_another(tmp_path, either_way):
    place = checked(book(tmp_path / "b", "old"), force=True)
    (tmp_path / "b").rename(tmp_path / "moved")
    assert "was removed meanwhile" in refused_at_the_end(place)


@pytest.mark.parametrize("change", [add, rewrite, swap])
def test_what_comes_in_the_last_moment_is_put_back(tmp_path, change, either_way, monkeypatch):
    place = checked(book(tmp_path / "b", "old"), force=True)
    exchange = staging.exchange

    def late(staged, final):
        change(final)
        monkeypatch.setattr(staging, "exchange", exchange)
        return exchange(staged, final)

    monkeypatch.setattr(staging, "exchange", late)
    refused_at_the_end(place)
    assert "theirs" in {path.read_text() for path in (tmp_path / "b").iterdir()}


def test_a_folder_that_another_process_writes_to_is_not_replaced(tmp_path, either_way):
    place = checked(book(tmp_path / "b", "old"), force=True)
    lock = staging.hold(tmp_path / "b")
    assert "is being written to by another process" in refused_at_the_end(place)
    os.close(lock)


def test_what_a_file_browser_leaves_is_no_change(tmp_path, either_way):
    place = checked(book(tmp_path / "b", "old"), force=True)
    (tmp_path / "b" / ".DS_Store").touch()
    write(place)
    assert [each.name for each in (tmp_path / "b").iterdir()] == ["i.txt"]


KILLED = """
import os, signal, sys
from pathlib import Path
from adaspec import places, staging
from adaspec.errors import AdaspecError

folder, moment = Path(sys.argv[1]), sys.argv[2]
contents = staging.Contents("a book", "i.txt", lambda name: name == "i.txt", AdaspecError)
place = staging.check_destination(folder, True, contents)

def dies(function, when):
    def run(*arguments):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        function(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    return run

way, when = moment.split()
if way == "exchange":
    staging.exchange = dies(staging.exchange, when)
else:
    places._renameat2 = lambda *_: False
    if way == "first":
        Path.rename = dies(Path.rename, when)
    else:
        rename = Path.rename
        second = dies(rename, when)
        Path.rename = lambda path, to: (second if path.suffix == ".staged" else rename)(path, to)
with staging.whole_folder(place, AdaspecError) as staged:
    (staged / "i.txt").write_text("new")
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("way", ["exchange", "first", "second"])
def test_a_kill_leaves_the_old_or_the_new_or_what_the_next_run_puts_back(
    tmp_path, caplog, way, when
):
    folder = book(tmp_path / "b", "old")
    done = subprocess.run([sys.executable, "-P", "-c", KILLED, str(folder), f"{way} {when}"])
    assert done.returncode == -signal.SIGKILL
    between = (way, when) in {("first", "after"), ("second", "before")}
    assert folder.exists() is not between
    with pytest.raises(AdaspecError, match="exists: choose another folder, or add --force"):
        checked(folder)
    is_new = (way, when) in {("exchange", "after"), ("second", "after")}
    assert (folder / "i.txt").read_text() == ("new" if is_new else "old")
    assert [f"{folder}: is back" in record.message for record in caplog.records] == [True] * between
    write(checked(folder, force=True), "newer")
    assert (folder / "i.txt").read_text() == "newer"


def test_what_a_living_writer_set_aside_is_not_put_back(tmp_path):
    aside = book(tmp_path / ".b.01234567.replaced", "old")
    lock = staging.hold(aside)
    assert checked(tmp_path / "b").seen is None
    os.close(lock)
    assert checked(tmp_path / "b", force=True).seen is not None


def test_what_belongs_to_a_place_of_a_longer_name_is_left_alone(tmp_path):
    book(tmp_path / ".b.two.01234567.replaced", "old")
    assert checked(tmp_path / "b").seen is None
    write(checked(tmp_path / "b"))
    assert checked(tmp_path / "b.two", force=True).seen is not None


def test_names_that_are_too_long_are_refused_before_anything_is_written(tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    assert "a name of over" in refused(tmp_path / ("x" * 300))
    assert "a name of over" in refused(tmp_path / ("x" * (longest - places.NAME_ADDS + 1)))
    assert "a name of over" in refused(tmp_path / ("ä" * 150))
    assert "a name of over" in refused(tmp_path / ("x" * 300) / "b")
    assert "the path is too long" in refused(tmp_path.joinpath(*["x" * 200] * 30))
    assert list(tmp_path.iterdir()) == []
    write(checked(tmp_path / ("x" * (longest - places.NAME_ADDS))))


def test_a_place_that_the_system_would_not_fill_is_refused_before(tmp_path, monkeypatch):
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("dangling", "loop"):
        assert "is not a folder" in refused(tmp_path / name)
        assert "is not a folder" in refused(tmp_path / name, force=True)
        assert "is not a folder" in refused(tmp_path / name / "b")
    assert "NUL" in refused(tmp_path / "a\0b")
    assert "/proc cannot be written" in refused(Path("/proc/b"))
    book(tmp_path / "b", "old")
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    assert "is a mount point" in refused(tmp_path / "b", force=True)


def test_a_file_takes_its_place_as_a_folder_does(tmp_path, either_way):
    for change, expected in ((False, "new"), (True, "theirs")):
        path = tmp_path / f"{expected}.json"
        path.write_text("old")
        place = staging.check_place(path, AdaspecError)
        if change:
            path.write_text("theirs")
        staged = places.beside(place.final, places.STAGED)
        staged.write_text("new")
        with pytest.raises(AdaspecError) if change else contextlib.nullcontext():
            staging.publish(staged, place, AdaspecError)
        assert path.read_text() == expected
    assert [each.read_text() for each in tmp_path.glob("theirs.json.*.finished")] == ["new"]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["mark/precious", "mark/a/b/precious"])
def test_a_folder_that_has_a_files_name_is_strange(tmp_path, name):
    there = tmp_path / "there" / name
    there.parent.mkdir(parents=True)
    there.write_text("x")
    contents = staging.Contents("a thing", "mark", lambda each: each == "mark", AdaspecError)
    with pytest.raises(AdaspecError, match="holds no mark"):
        staging.check_destination(tmp_path / "there", True, contents)
