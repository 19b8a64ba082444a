"""Decorators of functions that numba compiles on their first call, with the GIL released.

numba checks only the file of the outermost function: after an edit of what that calls in another
file, it would run old machine code. So code that is older than the newest source is deleted.
"""

import contextlib
import logging
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from numba import config, njit

_FOLDERS = ("cost", "draft", "policy", "replay")  # compiled into others
_UNCACHED = """adaspec: functions are compiled anew by every process, which takes minutes: neither \
adaspec's folder nor a home can be written to; name another folder in NUMBA_CACHE_DIR"""
_warn_once = cache(logging.getLogger("adaspec").warning)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function, and cache its machine code where there is a folder for it."""
    if config.DISABLE_JIT:
        return function
    try:
        dispatcher = njit(cache=True, nogil=True, **options)(function)
        folder = Path(dispatcher.stats.cache_path)
    except RuntimeError:  # numba found no folder
        folder = Path()
    # Without a home, numba takes a folder below the working one, into which others may write.
    if folder.is_absolute():
        _drop_stale_code(folder)
        return dispatcher
    _warn_once(_UNCACHED)
    return njit(nogil=True, **options)(function)


# Where handing over a tuple takes longer than the rest.
inlined = partial(compiled, inline="always")


@cache
def _drop_stale_code(folder: Path) -> None:
    files = (each for name in _FOLDERS for each in (Path(__file__).parent / name).rglob("*.py"))
    newest = max(each.stat().st_mtime for each in files)
    for index in folder.glob("*.nbi"):
        with contextlib.suppress(FileNotFoundError):  # another process deletes it, too
            if index.stat().st_mtime < newest:
                index.unlink()
