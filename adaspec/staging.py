"""Folders that appear whole or not at all: filled beside their place, then renamed into it."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from adaspec.errors import AdaspecError

STAGED = ".staged"
"""Ends the name of a folder that is being filled beside its place."""
REPLACED = ".replaced"
"""Ends the name of the older folder while it makes room."""

_DROPPINGS = {".DS_Store", "Thumbs.db"}


@dataclass(frozen=True, slots=True)
class Contents:
    """What a kind of folder is made of, so that --force never deletes anything else."""

    what: str
    """'a report', say."""
    mark: str
    """The file without which a folder is no such thing."""
    is_ours: Callable[[str], bool]
    """Whether a path inside the folder belongs to it."""
    error: type[AdaspecError]
    subfolder: str | None = None
    """The one folder inside it, looked into as well."""


def check_destination(folder: Path, force: bool, contents: Contents) -> None:
    """Raise the contents' error where `folder` may not be written or replaced; writes nothing.

    With `force` a folder is replaced only if it holds the mark and nothing strange: nobody's other
    files are ever deleted.
    """

    def refusal(found: str) -> AdaspecError:
        return contents.error(f"{folder}: {found}")

    if not os.path.lexists(folder):
        parent = _first_existing(folder.parent)
        if not parent.is_dir():
            raise refusal(f"{parent} is not a folder: choose another place")
        _check_writable(parent, refusal)
        return
    if not folder.is_dir():
        raise refusal("exists and is not a folder: choose another place")
    if not force:
        raise refusal("exists: choose another folder, or add --force")
    _check_writable(folder.resolve().parent, refusal)
    try:
        held = _held(folder, contents.subfolder)
    except OSError as error:
        raise refusal(f"{reason(error)}: choose another folder") from error
    if held and contents.mark not in held:
        raise refusal(
            f"holds no {contents.mark}, so --force will not replace it: "
            "choose another folder, or remove this one yourself"
        )
    strange = [name for name in held if not contents.is_ours(name)]
    if strange:
        raise refusal(
            f"also holds {strange[0]!r}, which is no part of {contents.what}, so --force will "
            "not replace it: move that away, or choose another folder"
        )


@contextmanager
def whole_folder(folder: Path, error: type[AdaspecError]) -> Iterator[Path]:
    """An empty folder to fill that takes `folder`'s place, on disk, only if the block succeeds.

    On any failure nothing new is left and what was there stays; one of the operating system is an
    `error` about `folder`.
    """
    final = folder.resolve()
    made: list[Path] = []
    staged: Path | None = None
    lock: int | None = None
    try:
        made = _make_parents(final.parent)
        staged = stage(final)
        lock = hold(staged)
        yield staged
        for each in sorted(staged.rglob("*")):
            if each.is_file():
                _flush(each)
        publish(staged, final, replaces=final.exists())
    except BaseException as fault:
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)
        for parent in made:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(fault, OSError):
            raise error(f"{folder}: {reason(fault)}; nothing was written") from fault
        raise
    finally:
        if lock is not None:
            os.close(lock)


def stage(final: Path, private: bool = False) -> Path:
    """A new empty folder beside `final`, for the owner alone where `private`.

    What killed writers staged for the same place is removed.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for old in final.parent.glob(f"{glob.escape(f'.{final.name}.')}*{STAGED}"):
        _remove_if_dead(old)
    staged = final.parent / f".{final.name}.{secrets.token_hex(4)}{STAGED}"
    staged.mkdir(0o700 if private else 0o777)
    return staged


def hold(folder: Path) -> int:
    """Lock `folder` until the descriptor returned is closed, or this process ends.

    `BlockingIOError` where another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass  # Some network file systems have no locks; writing goes on without.
    return descriptor


def publish(staged: Path, final: Path, replaces: bool) -> None:
    """Give the staged folder its name; an older one goes only then, and returns if that fails."""
    older = staged.with_name(staged.name.removesuffix(STAGED) + REPLACED)
    if replaces:
        final.rename(older)
    try:
        staged.rename(final)
    except BaseException:
        if replaces:
            older.rename(final)
        raise
    sync_folder(final.parent)
    if replaces:
        shutil.rmtree(older, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut; does nothing where unsupported."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def reason(error: OSError) -> str:
    """Why the operating system would not let us write, as the rest of a sentence."""
    known = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EFBIG: "a file would exceed the size allowed",
        errno.EACCES: "may not be written to (permission denied)",
        errno.EPERM: "may not be written to (operation not permitted)",
        errno.EROFS: "lies on a read-only file system",
    }
    return known.get(error.errno or 0, f"cannot be written ({error.strerror or error})")


def _check_writable(parent: Path, refusal: Callable[[str], AdaspecError]) -> None:
    if not os.access(parent, os.W_OK | os.X_OK):
        raise refusal(f"{parent} cannot be written to: choose another place")


def _held(folder: Path, subfolder: str | None) -> list[str]:
    """What a folder holds, the subfolder by its files, droppings of file browsers aside."""
    names = sorted(each.name for each in folder.iterdir() if each.name not in _DROPPINGS)
    inner = folder / subfolder if subfolder else None
    if inner is not None and inner.is_dir() and not inner.is_symlink():
        names.remove(inner.name)
        names += sorted(
            f"{inner.name}/{each.name}" for each in inner.iterdir() if each.name not in _DROPPINGS
        )
    return names


def _first_existing(folder: Path) -> Path:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _make_parents(folder: Path) -> list[Path]:
    """Create what is missing of `folder`; the new ones, deepest first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
    return missing


def _flush(path: Path) -> None:
    """Reach the disk before the rename does, so that a full one is noticed here."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove_if_dead(staged: Path) -> None:
    """Remove a staged folder whose writer was killed; a living one holds its lock."""
    with suppress(OSError):
        descriptor = os.open(staged, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(staged, ignore_errors=True)
        finally:
            os.close(descriptor)
