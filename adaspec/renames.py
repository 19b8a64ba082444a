"""Renames that Linux does in one piece: exchange two names, or take one only if it is free."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_HERE = -100
"""AT_FDCWD: paths count from the working folder."""
_NO_REPLACE, _EXCHANGE = 1, 2

_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
"""What kernels, file systems and sandboxes say that do not know these renames."""


def exchange(one: Path, other: Path) -> bool:
    """Swap what the two paths name; False where the system cannot, and nothing was done."""
    return _rename(one, other, _EXCHANGE)


def rename_to_free(source: Path, target: Path) -> bool:
    """Rename, or `FileExistsError`; False where the system cannot, and nothing was done."""
    return _rename(source, target, _NO_REPLACE)


def _rename(source: Path, target: Path, flag: int) -> bool:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    names = os.fsencode(source), os.fsencode(target)
    if call(_HERE, names[0], _HERE, names[1], ctypes.c_uint(flag)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))
