"""Places that something is to appear at: what is there, and which names beside it are ours."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STAGED = ".staged"
"""Ends the name of what is being filled beside its place."""
REPLACED = ".replaced"
"""Ends the name of the older thing while it makes room."""
FINISHED = ".finished"
"""Ends the name of what was finished and found its place taken."""

_DIGITS = 8
NAME_ADDS = len(f"..{'0' * _DIGITS}{REPLACED}")
"""By how much a name beside the place is longer than the place's own."""
PATH_ADDS = 128
"""How much longer the path of a file inside may be."""

DROPPINGS = {".DS_Store", "Thumbs.db"}

Seen = frozenset[tuple[str | int, ...]] | None
"""The files and folders at a place, with what tells them from others; None where nothing is."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is to appear; it replaces what was seen there, and nothing else."""

    path: Path
    """As the user named it."""
    final: Path
    """Links followed."""
    seen: Seen


def look(path: Path) -> Place:
    """The place at `path`, with what is there now."""
    final = Path(os.path.realpath(path))
    return Place(path, final, _seen(final))


def difference(path: Path, place: Place) -> str | None:
    """How what is at `path` differs from what was seen at the place, as the rest of a sentence."""
    now = _seen(path)
    if now == place.seen:
        return None
    if now is None:
        return "was removed meanwhile"
    if place.seen is None:
        return "came into being meanwhile, and is left as it is"
    names = sorted(str(name) for name, *_ in now ^ place.seen)
    # The folder itself has the empty name, and stands first.
    changed = f" ({names[0]!r})" if names[0] else ""
    return f"was changed meanwhile{changed}, and is left as it is"


def beside(final: Path, ending: str) -> Path:
    """A hidden path for what belongs to a place, beside it."""
    return final.with_name(f".{final.name}.{secrets.token_hex(_DIGITS // 2)}{ending}")


def all_beside(final: Path, ending: str) -> list[Path]:
    """Everything that is called so."""
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
    """Why the operating system would not let us write, as the rest of a sentence."""
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
    """What is at a path; in a folder what it holds two levels deep, droppings of browsers aside.

    A folder is itself wherever it is moved, and whatever it holds; a file only while nobody wrote.
    """
    if not os.path.lexists(path):
        return None
    found = {_stamp("", path)}
    if not path.is_dir():
        return frozenset(found)
    for parent, folders, files in os.walk(path, onerror=_raise):
        for name in {*folders, *files} - DROPPINGS:
            each = Path(parent, name)
            found.add(_stamp(str(each.relative_to(path)), each))
        if Path(parent) != path:
            folders.clear()  # nothing that is ever replaced goes deeper
    return frozenset(found)


def _stamp(name: str, path: Path) -> tuple[str | int, ...]:
    found = path.lstat()
    which = (name, found.st_dev, found.st_ino)
    return which if stat.S_ISDIR(found.st_mode) else (*which, found.st_size, found.st_mtime_ns)


def _raise(error: OSError) -> None:
    raise error
