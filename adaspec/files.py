"""Files and folders that appear complete or not at all: filled beside their place, then renamed."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from adaspec.errors import AdaspecError

AnyPath: TypeAlias = str | os.PathLike[str]

UNFINISHED = ".unfinished"
_REASONS = {
    errno.ENOSPC: "the disk is full: free some space, or choose another disk",
    errno.ENOTEMPTY: "came into being meanwhile, and is left as it is: choose another place",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of folder, so that --force never deletes files of any other."""

    what: str
    mark: str
    """Name of the file that every folder of this kind holds."""
    is_ours: Callable[[str], bool]
    """Whether a path inside the folder belongs to it."""
    error: type[AdaspecError]


@contextmanager
def refusing(path: Path, error: type[AdaspecError]) -> Iterator[None]:
    """Turn an `OSError` of the block into an `error` that `path` cannot be written."""
    try:
        yield
    except OSError as fault:
        why = f"cannot be written ({fault.strerror or fault}): choose another place"
        raise error(f"{path}: {_REASONS.get(fault.errno or 0, why)}") from fault


def check_writable(path: Path, error: type[AdaspecError]) -> None:
    """Raise `error` if nothing could be created at `path`; call it before long work."""
    final = _final(path)
    parent = next(each for each in final.parents if os.path.lexists(each))
    with refusing(path, error):
        # Only a try can tell: root, network file systems and quotas do not go by permissions alone.
        probe = _beside(parent / final.name, UNFINISHED)
        probe.mkdir()
        probe.rmdir()


def check_folder(path: Path, kind: Kind, force: bool = False) -> None:
    """Raise the kind's error if no such folder can be written to `path`; call it before long work.

    With `force` an empty folder, or one that holds the mark and nothing foreign, may be replaced.
    """
    if os.path.lexists(path):
        if not path.is_dir():
            raise kind.error(f"{path}: exists and is not a folder: choose another place")
        if not force:
            raise kind.error(f"{path}: exists: choose another folder, or add --force")
        names = [str(each.relative_to(path)) for each in sorted(path.rglob("*"))]
        foreign = next((name for name in names if not kind.is_ours(name)), None)
        if foreign is not None or (names and kind.mark not in names):
            why = f"holds no {kind.mark}" if foreign is None else f"also holds {foreign!r}"
            raise kind.error(
                f"{path}: {why}, so --force will not replace it as {kind.what}: choose another "
                "folder, or remove this one yourself"
            )
    check_writable(path, kind.error)


@contextmanager
def new_folder(path: Path, kind: Kind, force: bool = False, mode: int = 0o777) -> Iterator[Path]:
    """A folder to fill, which takes its place if the block succeeds; if not, nothing is left."""
    check_folder(path, kind, force)
    final = _final(path)
    staged, older = _beside(final, UNFINISHED), _beside(final, ".replaced")
    try:
        with refusing(path, kind.error):
            final.parent.mkdir(parents=True, exist_ok=True)
            staged.mkdir(mode)
            yield staged
            for each in filter(Path.is_file, staged.rglob("*")):
                _flush(each)
            if force and final.exists():
                check_folder(path, kind, force)  # again, as files may have come meanwhile
                final.rename(older)
            staged.rename(final)  # fails if anything but an empty folder is there
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    shutil.rmtree(older, ignore_errors=True)


@contextmanager
def new_file(path: Path, error: type[AdaspecError], mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to fill, which takes its place if the block succeeds."""
    staged = _beside(_final(path), UNFINISHED)
    try:
        with refusing(path, error):
            staged.touch(mode, exist_ok=False)
            with staged.open("wb") as file:
                yield file
            _flush(staged)
            staged.replace(_final(path))
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def _final(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _beside(final: Path, ending: str) -> Path:
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}{ending}")


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
