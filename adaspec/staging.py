"""Files and folders that appear complete or not at all: filled beside their place, then renamed.

A place is looked at before the work that fills it begins. At the end only the files seen there are
replaced. If anything else has appeared meanwhile, it stays, and the finished work is left beside
it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from adaspec.errors import AdaspecError
from adaspec.places import (
    DROPPINGS,
    FINISHED,
    NAME_ADDS,
    PATH_ADDS,
    REPLACED,
    STAGED,
    Place,
    TakenError,
    all_beside,
    beside,
    check_unchanged,
    exchange,
    flush,
    look,
    reason,
    rename_to_free,
    sync_folder,
)

log = logging.getLogger("adaspec")


@dataclass(frozen=True, slots=True)
class Contents:
    """The files that a kind of folder may hold, so that --force never deletes any others."""

    what: str
    """Name of the kind, such as 'a report'."""
    mark: str
    """Name of the file that every folder of this kind holds."""
    is_ours: Callable[[str], bool]
    """Function that says whether a path inside the folder belongs to it."""
    error: type[AdaspecError]
    subfolder: str | None = None
    """The one folder that it may hold, whose files are checked as well."""


def check_place(path: Path, error: type[AdaspecError], force: bool = True) -> Place:
    """The place at `path`, with what is there now; raises `error` if nothing can be written there.

    Without `force` nothing may be there yet. The check leaves nothing behind, but puts back what a
    killed writer had set aside.
    """
    _check_reachable(path, error)
    put_back(path)
    if os.path.lexists(path) and not force:
        raise error(f"{path}: exists: choose another folder, or add --force")
    try:
        return look(path)
    except OSError as fault:
        raise error(f"{path}: {reason(fault)}: choose another place") from fault


def check_destination(folder: Path, force: bool, contents: Contents) -> Place:
    """The place at `folder`, or the contents' error if it may not be written or replaced.

    With `force` a folder may be replaced only if it is empty, or holds the mark and only files that
    belong to it: other files are never deleted.
    """

    def refusal(why: str) -> AdaspecError:
        return contents.error(f"{folder}: {why}")

    if os.path.lexists(folder) and not folder.is_dir():
        raise refusal("exists and is not a folder: choose another place")
    place = check_place(folder, contents.error, force)
    if place.seen is None:
        return place
    try:
        names = held(folder, contents.subfolder)
    except OSError as error:
        raise refusal(f"{reason(error)}: choose another folder") from error
    if names and contents.mark not in names:
        raise refusal(
            f"holds no {contents.mark}, so --force will not replace it: "
            "choose another folder, or remove this one yourself"
        )
    strange = [name for name in names if not contents.is_ours(name)]
    if strange:
        raise refusal(
            f"also holds {strange[0]!r}, which is no part of {contents.what}, so --force will "
            "not replace it: move that away, or choose another folder"
        )
    return place


@contextmanager
def whole_folder(place: Place, error: type[AdaspecError]) -> Iterator[Path]:
    """An empty folder to fill, which is moved to its place only if the block succeeds.

    All files are on the disk before that. If the block fails, nothing new is left and the old
    folder stays; an `OSError` becomes an `error` about the place.
    """
    new_parents: list[Path] = []
    staged: Path | None = None
    lock: int | None = None
    try:
        new_parents = _make_parents(place.final.parent)
        staged = stage(place.final)
        lock = hold(staged)
        yield staged
        for path in sorted(staged.rglob("*")):
            flush(path) if path.is_file() else sync_folder(path)
        sync_folder(staged)
        publish(staged, place, error)
    except BaseException as fault:
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)
        for parent in new_parents:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(fault, OSError):
            raise error(f"{place.path}: {reason(fault)}; nothing was written") from fault
        raise
    finally:
        if lock is not None:
            os.close(lock)


def stage(final: Path, private: bool = False) -> Path:
    """A new empty folder beside `final`, readable by its owner only if `private`.

    Folders that killed writers left staged for the same place are removed.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for old in all_beside(final, STAGED):
        _remove_if_dead(old)
    staged = beside(final, STAGED)
    staged.mkdir(0o700 if private else 0o777)
    return staged


def hold(folder: Path) -> int:
    """Lock `folder` until the returned descriptor is closed or this process ends.

    Raises `BlockingIOError` if another process has locked it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass  # Some network file systems have no locks; writing goes on without one.
    return descriptor


def publish(staged: Path, place: Place, error: type[AdaspecError], keeps: bool = True) -> None:
    """Move what was staged to its place, if the place has not changed since it was looked at.

    If it has, raise `error` and leave the place as it is. With `keeps` the finished work is kept
    under another name, which the error gives.
    """
    try:
        if place.seen is None:
            rename_to_free(staged, place.final)
        else:
            _replace(staged, place)
    except (TakenError, OSError) as fault:
        why = reason(fault) if isinstance(fault, OSError) else str(fault)
        finished = _finished(staged, place.final) if keeps else None
        kept = "nothing was written"
        if finished is not None:
            kept = f"what was finished is now {finished}: move it to where you want it"
        raise error(f"{place.path}: {why}; {kept}") from fault
    sync_folder(place.final.parent)


def put_back(path: Path) -> None:
    """Put back the folder that a killed writer had set aside, if its place is still empty."""
    final = Path(os.path.realpath(path))
    for aside in sorted(all_beside(final, REPLACED)):
        if os.path.lexists(final):
            return
        with suppress(OSError, TakenError):
            lock = hold(aside)  # fails if a living writer holds it
            try:
                rename_to_free(aside, final)
            finally:
                os.close(lock)
            log.warning("%s: is back; a writer that was killed had set it aside", path)


def _replace(staged: Path, place: Place) -> None:
    """Put what was staged in the place of an older file or folder, and delete the older one."""
    final = place.final
    check_unchanged(final, place)
    # With this lock, another process does not take the older one for a killed writer's leftover.
    lock = hold(final)
    try:
        if exchange(staged, final):
            try:
                check_unchanged(staged, place)
            except BaseException:
                exchange(staged, final)
                raise
        else:
            _replace_in_two(staged, place)
        sync_folder(final.parent)
        _remove(staged)
    finally:
        os.close(lock)


def _replace_in_two(staged: Path, place: Place) -> None:
    """Replace without `exchange`, in two steps: a kill in between leaves the older one aside."""
    final = place.final
    aside = staged.with_name(staged.name.removesuffix(STAGED) + REPLACED)
    final.rename(aside)
    try:
        check_unchanged(aside, place)
        rename_to_free(staged, final)
    except BaseException:
        rename_to_free(aside, final)
        raise
    aside.rename(staged)


def _finished(staged: Path, final: Path) -> Path | None:
    """Rename what was staged to a visible name and return that, or None if that fails, too."""
    shown = beside(final, FINISHED)
    shown = shown.with_name(shown.name.removeprefix("."))
    try:
        rename_to_free(staged, shown)
    except (TakenError, OSError):
        return None
    return shown


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _check_reachable(path: Path, error: type[AdaspecError]) -> None:
    """Raise `error` if the system would not let anything be created or replaced at `path`."""

    def refusal(why: str) -> AdaspecError:
        return error(f"{path}: {why}")

    if "\0" in str(path):
        raise error(f"{str(path)!r}: no name may hold a NUL sign: choose another one")
    final = Path(os.path.realpath(path))
    # A dangling link is not a folder, even if one could be created at its target.
    for parent in (_first_existing(path.parent), _first_existing(final.parent)):
        if not parent.is_dir():
            raise refusal(f"{parent} is not a folder: choose another place")
    longest = os.pathconf(parent, "PC_NAME_MAX")
    for part in final.relative_to(parent).parts:
        room = longest - NAME_ADDS if part == final.name else longest
        if len(os.fsencode(part)) > room:
            raise refusal(f"a name of over {room} bytes: choose a shorter one")
    if len(os.fsencode(final)) > os.pathconf(parent, "PC_PATH_MAX") - PATH_ADDS:
        raise refusal("the path is too long: choose a shorter one")
    if os.path.ismount(final):
        raise refusal("is a mount point, which cannot be replaced: choose a folder inside it")
    # Only a try can tell: root, network file systems and quotas do not go by permissions alone.
    probe = parent / beside(final, STAGED).name
    try:
        probe.mkdir()
    except OSError as fault:
        raise refusal(f"{parent} {reason(fault)}: choose another place") from fault
    with suppress(OSError):
        probe.rmdir()


def held(folder: Path, subfolder: str | None = None) -> list[str]:
    """The names in a folder and in its subfolder, without files that file browsers leave.

    Names of other folders end in a slash, so that they are not taken for files.
    """
    names = _names(folder)
    if subfolder is not None and f"{subfolder}/" in names:
        names.remove(f"{subfolder}/")
        names += [f"{subfolder}/{name}" for name in _names(folder / subfolder)]
    return names


def _names(folder: Path) -> list[str]:
    return sorted(
        f"{each.name}/" if each.is_dir() and not each.is_symlink() else each.name
        for each in folder.iterdir()
        if each.name not in DROPPINGS
    )


def _first_existing(folder: Path) -> Path:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _make_parents(folder: Path) -> list[Path]:
    """Create a folder and its missing parents, and return the new ones, deepest first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
    return missing


def _remove_if_dead(staged: Path) -> None:
    """Remove a staged folder if its writer was killed; a living one still holds its lock."""
    with suppress(OSError):
        descriptor = os.open(staged, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(staged)
        finally:
            os.close(descriptor)
