"""Places where a file or folder will appear: what is there, names beside it, and safe renames."""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STAGED = ".staged"
"""Ending of the name of a new file or folder while it is filled beside its place."""
REPLACED = ".replaced"
"""Ending of the name of an old file or folder that is set aside to make room."""
FINISHED = ".finished"
"""Ending of the name of a finished file or folder whose place was taken meanwhile."""

_DIGITS = 8
NAME_ADDS = len(f"..{'0' * _DIGITS}{REPLACED}")
"""How much longer a name beside the place is than the place's own name."""
PATH_ADDS = 128
"""How much longer the path of a file inside the folder may be."""

DROPPINGS = {".DS_Store", "Thumbs.db"}
"""Names of files that file browsers leave in folders."""

_WORKING_FOLDER = -100
"""Value of AT_FDCWD, by which paths start at the working folder."""
_NO_REPLACE, _EXCHANGE = 1, 2
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
"""Errors of kernels, file systems and sandboxes that do not support renameat2."""

Seen = frozenset[tuple[str | int, ...]] | None
"""The files and folders at a place, with inode, size and time; None if there are none."""


class TakenError(Exception):
    """The content of a place has changed since it was looked at."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file or folder will appear; it replaces only what was seen there."""

    path: Path
    """Path as the user gave it."""
    final: Path
    """Path with all links followed."""
    seen: Seen


def look(path: Path) -> Place:
    """The place at `path`, with what is there now."""
    final = Path(os.path.realpath(path))
    return Place(path, final, _seen(final))


def check_unchanged(path: Path, place: Place) -> None:
    """Raise `TakenError` if `path` no longer holds what was seen at the place."""
    now = _seen(path)
    if now == place.seen:
        return
    if now is None:
        raise TakenError("was removed meanwhile")
    assert place.seen is not None  # only replaced places are checked again
    names = sorted(str(name) for name, *_ in now ^ place.seen)
    # The folder itself has the empty name, so it is the first.
    changed = f" ({names[0]!r})" if names[0] else ""
    raise TakenError(f"was changed meanwhile{changed}, and is left as it is")


def rename_to_free(source: Path, target: Path) -> None:
    """Rename in one step; raise `TakenError` if something already has the target's name."""
    with suppress(FileExistsError):
        if _renameat2(source, target, _NO_REPLACE):
            return
    if os.path.lexists(target):
        raise TakenError("came into being meanwhile, and is left as it is")
    source.rename(target)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False if the system cannot do that, and nothing was changed."""
    return _renameat2(one, other, _EXCHANGE)


def _renameat2(source: Path, target: Path, flag: int) -> bool:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    old, new = os.fsencode(source), os.fsencode(target)
    if call(_WORKING_FOLDER, old, _WORKING_FOLDER, new, ctypes.c_uint(flag)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


def beside(final: Path, ending: str) -> Path:
    """A new hidden path beside a place, with a name made from the place's."""
    return final.with_name(f".{final.name}.{secrets.token_hex(_DIGITS // 2)}{ending}")


def all_beside(final: Path, ending: str) -> list[Path]:
    """All paths beside a place that `beside` named with this ending."""
    start = glob.escape(f".{final.name}.")
    return list(final.parent.glob(f"{start}{'[0-9a-f]' * _DIGITS}{ending}"))


def flush(path: Path) -> None:
    """Write a file to the disk before it is renamed, so that a full disk is noticed here."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut; do nothing if that is unsupported."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def reason(error: OSError) -> str:
    """Why the operating system refused to write, as the end of a sentence about the path."""
    known = {
        errno.EAGAIN: "is being written to by another process",
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EFBIG: "a file would exceed the size allowed",
        errno.EACCES: "may not be written to (permission denied)",
        errno.EPERM: "may not be written to (operation not permitted)",
        errno.EROFS: "lies on a read-only file system",
    }
    return known.get(error.errno or 0, f"cannot be written ({error.strerror or error})")


def _seen(path: Path) -> Seen:
    """Stamps of all that is at a path, two levels deep, without files that file browsers leave.

    A folder's stamp does not change when the folder is moved or filled. A file's stamp changes when
    the file is written to.
    """
    if not os.path.lexists(path):
        return None
    stamps = {_stamp("", path)}
    if not path.is_dir():
        return frozenset(stamps)
    for parent, folders, files in os.walk(path, onerror=_raise):
        for name in {*folders, *files} - DROPPINGS:
            entry = Path(parent, name)
            stamps.add(_stamp(str(entry.relative_to(path)), entry))
        if Path(parent) != path:
            folders.clear()  # folders that may be replaced are never deeper
    return frozenset(stamps)


def _stamp(name: str, path: Path) -> tuple[str | int, ...]:
    status = path.lstat()
    stamp = (name, status.st_dev, status.st_ino)
    return stamp if stat.S_ISDIR(status.st_mode) else (*stamp, status.st_size, status.st_mtime_ns)


def _raise(error: OSError) -> None:
    raise error
