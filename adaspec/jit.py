"""Compilation with numba: `compiled` and `inlined` functions, whose cache is never stale.

numba's cache checks only the file of the outermost function. If a function that it calls in another
file were edited, numba would not notice and would run old code. So machine code older than the
newest source with compiled code or its constants is deleted before it can be loaded.

numba keeps machine code beside the sources, or else below the user's home. If neither can be
written, as in a container that runs as any user, it is kept in the folder for temporary files. If
that cannot be used either, every process compiles the functions again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from numba import config, njit

_PACKAGE = Path(__file__).parent
_FOLDERS = ("cost", "draft", "policy", "predict", "replay", "train")
"""Folders with compiled code, and with constants that it freezes."""

log = logging.getLogger("adaspec")


@cache
def _newest_source() -> int:
    sources = (path for name in _FOLDERS for path in (_PACKAGE / name).rglob("*.py"))
    return max(path.stat().st_mtime_ns for path in sources)


@cache
def _drop_stale_code(folder: Path) -> None:
    """Delete machine code in a folder that is older than the newest source."""
    for index in folder.glob("*.nbi"):
        # Another process may be deleting it, too, or the folder may be read-only, and then its
        # cache cannot come from this checkout.
        with contextlib.suppress(OSError):
            if index.stat().st_mtime_ns < _newest_source():
                index.unlink()


def _cached(function: Callable[..., Any], **options: Any) -> Any:
    """A dispatcher whose machine code is kept in a folder, from which stale code is gone."""
    dispatcher = njit(cache=True, **options)(function)
    if not config.DISABLE_JIT:
        _drop_stale_code(Path(dispatcher.stats.cache_path))
    return dispatcher


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function with numba, and cache its machine code if a folder allows that."""
    try:
        dispatcher = _cached(function, **options)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    else:
        # Without a home, numba would cache code in the working folder, which others may write to.
        if (
            config.DISABLE_JIT
            or config.CACHE_DIR
            or Path(dispatcher.stats.cache_path).is_absolute()
        ):
            return dispatcher
    folder = _private_folder()
    if folder is None:
        return njit(**options)(function)
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        return _cached(function, **options)
    finally:
        config.CACHE_DIR = before


@cache
def _private_folder() -> Path | None:
    """A temporary folder into which only this user can write; None if there is no such folder.

    Cached machine code is run without checks, so nobody else may be able to put any there.
    """
    user = os.geteuid()
    try:
        parent = Path(tempfile.gettempdir())
        folder = parent / f"adaspec-{user}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
            log.warning(
                "adaspec: compiled code is kept in %s: neither adaspec's own folder nor the "
                "user's home can be written to",
                folder,
            )
        status, above = folder.lstat(), parent.stat()
        is_private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
        is_shared = above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_fixed = above.st_uid in (0, user) and (not is_shared or above.st_mode & stat.S_ISVTX)
        if is_private and status.st_uid == user and is_fixed:
            return folder
    except OSError:
        pass
    log.warning(
        "adaspec: functions are compiled anew by every process, which takes minutes: no folder for "
        "compiled code can be written to, or trusted; name one in NUMBA_CACHE_DIR"
    )
    return None


compiled = partial(_compile, nogil=True)
"""Decorator of functions that are compiled on their first call and release the GIL."""

vectorized = partial(_compile, nogil=True, error_model="numpy")
"""The same for loops over whole rows: a division by zero gives infinity, which lets them run in
vector lanes."""

inlined = partial(_compile, nogil=True, inline="always")
"""The same for formulas of a line or two that are inlined into other compiled functions."""
