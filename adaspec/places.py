"""Places where a file or folder is to appear: what is there, names beside it, safe renames."""

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
"""Ending of a name: the new file or folder while it is filled beside its place."""
REPLACED = ".replaced"
"""Ending of a name: the old one, set aside to make room."""
FINISHED = ".finished"
"""Ending of a name: the new one, finished, whose place was taken meanwhile."""

_DIGITS = 8
NAME_ADDS = len(f"..{'0' * _DIGITS}{REPLACED}")
"""By how much a name beside the place is longer than the place's own."""
PATH_ADDS = 128
"""How much longer the path of a file inside may be."""

DROPPINGS = {".DS_Store", "Thumbs.db"}
"""Files that file browsers leave in folders."""

_WORKING_FOLDER = -100
"""AT_FDCWD: paths count from the working folder."""
_NO_REPLACE, _EXCHANGE = 1, 2
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
"""Errors of kernels, file systems and sandboxes that do not know renameat2."""

Seen = frozenset[tuple[str | int, ...]] | None
"""The files and folders at a place, with inode, size and time; None where nothing is."""


class TakenError(Exception):
    """A place no longer holds what was seen there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file or folder is to appear; it replaces what was seen there, and nothing else."""

    path: Path
    """As the user named it."""
    final: Path
    """Links followed."""
    seen: Seen


def look(path: Path) -> Place:
    """The place at `path`, with what is there now."""
    final = Path(os.path.realpath(path))
    return Place(path, final, _seen(final))


def check_unchanged(path: Path, place: Place) -> None:
    """Raise `TakenError` where `path` does not hold what was seen at the place."""
    now = _seen(path)
    if now == place.seen:
        return
    if now is None:
        raise TakenError("was removed meanwhile")
    assert place.seen is not None  # else nobody looks at it again
    names = sorted(str(name) for name, *_ in now ^ place.seen)
    # The folder itself has the empty name, and stands first.
    changed = f" ({names[0]!r})" if names[0] else ""
    raise TakenError(f"was changed meanwhile{changed}, and is left as it is")


def rename_to_free(source: Path, target: Path) -> None:
    """Rename in one step, if nothing has the target's name; else raise `TakenError`."""
    with suppress(FileExistsError):
        if _renameat2(source, target, _NO_REPLACE):
            return
    if os.path.lexists(target):
        raise TakenError("came into being meanwhile, and is left as it is")
    source.rename(target)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system cannot, and nothing was done."""
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
    """A new hidden path beside a place, named after it."""
    return final.with_name(f".{final.name}.{secrets.token_hex(_DIGITS // 2)}{ending}")


def all_beside(final: Path, ending: str) -> list[Path]:
    """Every path beside a place that `beside` has named so."""
    start = glob.escape(f".{final.name}.")
    return list(final.parent.glob(f"{start}{'[0-9a-f]' * _DIGITS}{ending}"))


def flush(path: Path) -> None:
    """Have a file on the disk before the rename is, so that a full one is noticed here."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut; does nothing where unsupported."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def reason(error: OSError) -> str:
    """Why the operating system refused to write, as the rest of a sentence."""
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
    """All that is at a path, in a folder two levels deep, but for what file browsers leave.

    A folder stays the same wherever it is moved and whatever it holds, a file until it is written.
    """
    if not os.path.lexists(path):
        return None
    stamps = {_stamp("", path)}
    if not path.is_dir():
        return frozenset(stamps)
    for parent, folders, files in os.walk(path, onerror=_raise):
        for name in {*folders, *files} - DROPPINGS:
            each = Path(parent, name)
            stamps.add(_stamp(str(each.relative_to(path)), each))
        if Path(parent) != path:
            folders.clear()  # nothing that is ever replaced goes deeper
    return frozenset(stamps)


def _stamp(name: str, path: Path) -> tuple[str | int, ...]:
    status = path.lstat()
    stamp = (name, status.st_dev, status.st_ino)
    return stamp if stat.S_ISDIR(status.st_mode) else (*stamp, status.st_size, status.st_mtime_ns)


def _raise(error: OSError) -> None:
    raise error
