"""How this package compiles: `compiled` and `inlined` functions, cached, and never stale.

numba's cache looks at the file of the outermost function only: an edit to something that it calls
in another file would go unnoticed, and old code would run. So whatever was cached before the
newest of the sources that hold or feed compiled code is dropped as soon as this is imported.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from numba import njit

_PACKAGE = Path(__file__).parent
_FOLDERS = ("cost", "draft", "policy", "predict", "replay", "train")
"""Where compiled code, and constants that it freezes, live."""


def _drop_stale_caches() -> None:
    """Delete cached machine code that is older than the newest source."""
    sources = [path for folder in _FOLDERS for path in (_PACKAGE / folder).rglob("*.py")]
    newest = max(path.stat().st_mtime_ns for path in sources)
    for folder in _FOLDERS:
        for index in (_PACKAGE / folder).rglob("*.nbi"):
            # Another process may be at the same, or the folder be read-only: then its cache
            # cannot be of this checkout's making either.
            with contextlib.suppress(OSError):
                if index.stat().st_mtime_ns < newest:
                    index.unlink()


_drop_stale_caches()

compiled = njit(cache=True, nogil=True)
"""Compiled on first call, without the GIL."""

inlined = njit(cache=True, nogil=True, inline="always")
"""The same, for formulas of a line or two that other compiled functions are made of."""
