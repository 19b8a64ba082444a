"""Named arrays as the bytes of an .npz file, and back without running or trusting anything in it.

The files are ones that `numpy.load(..., allow_pickle=False)` reads, but of the many forms that it
would take only the one written here is accepted: members stored plainly, so that no file is larger
in memory than on disk, and headers of one fixed shape, so that none is evaluated.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError

Arrays = dict[str, NDArray[Any]]

MAX_ARRAYS = 1000
MAX_DIMENSIONS = 8

_DTYPES = {
    np.dtype(name).str: np.dtype(name)
    for name in (
        *("?", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8"),
        *("<f2", "<f4", "<f8"),
    )
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<|][a-z][0-9])', 'fortran_order': False, "
    rb"'shape': \(((?:[0-9]{1,18}, ?)*(?:[0-9]{1,18})?)\), \} *\n"
)


def npz_bytes(arrays: Mapping[str, NDArray[Any]], where: str) -> bytes:
    """The arrays as an .npz file; the same names and values give the same bytes anywhere."""
    if len(arrays) > MAX_ARRAYS:
        raise PolicyError(f"{where}: {len(arrays)} arrays are more than {MAX_ARRAYS}")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            member.create_system = 3  # otherwise it says on which system it was written
            archive.writestr(member, _npy_bytes(name, arrays[name], where))
    return content.getvalue()


def npz_arrays(content: bytes, where: str) -> Arrays:
    """The arrays of `npz_bytes`, each its own memory; anything else is a `PolicyError`."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            _check_members(members, len(content), where)
            return {
                member.filename.removesuffix(".npy"): _array(
                    archive.read(member), f"{where} {member.filename}"
                )
                for member in members
            }
    except PolicyError:
        raise
    except Exception as error:
        # zipfile raises far more than BadZipFile over crafted files, and promises no list.
        raise PolicyError(
            f"{where}: damaged ({type(error).__name__}: {_one_line(error)}): restore it from a copy"
        ) from None


def _npy_bytes(name: str, array: NDArray[Any], where: str) -> bytes:
    if not _NAME.fullmatch(name):
        raise PolicyError(f"{where}: {name!r} is no name for an array: use letters, digits and _")
    plain = np.asarray(array)
    dtype = _DTYPES.get(plain.dtype.newbyteorder("<").str)
    if dtype is None:
        raise PolicyError(
            f"{where}: array {name!r} is of {plain.dtype}: numbers and truth values only"
        )
    if plain.ndim > MAX_DIMENSIONS:
        raise PolicyError(f"{where}: array {name!r} has {plain.ndim} dimensions, too many")
    # ascontiguousarray would make a vector of a scalar.
    plain = plain.astype(dtype, order="C", copy=False)
    # Not numpy's own writer, whose padding differs between its versions.
    header = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {plain.shape}, }}"
    start = len(_MAGIC) + 2
    header += " " * (-(start + len(header) + 1) % 64) + "\n"
    prefix = _MAGIC + len(header).to_bytes(2, "little") + header.encode("ascii")
    return prefix + plain.tobytes(order="C")


def _check_members(members: list[zipfile.ZipInfo], size: int, where: str) -> None:
    """Refuse by what the members declare, before any of them is read."""
    if len(members) > MAX_ARRAYS:
        raise PolicyError(f"{where}: {len(members)} arrays are more than {MAX_ARRAYS}")
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise PolicyError(f"{where}: an array comes twice: restore it from a copy")
    for member in members:
        shown = f"{where} {_one_line(ascii(member.filename))}"
        name = member.filename.removesuffix(".npy")
        if name == member.filename or not _NAME.fullmatch(name):
            raise PolicyError(f"{shown}: not an array's name: restore it from a copy")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise PolicyError(f"{shown}: is compressed, which no policy is: restore it from a copy")
    # Overlapping members would make much of few bytes.
    if sum(member.file_size for member in members) > size:
        raise PolicyError(f"{where}: its arrays claim more than its {size} bytes: do not trust it")


def _array(content: bytes, where: str) -> NDArray[Any]:
    start = len(_MAGIC) + 2
    end = start + int.from_bytes(content[len(_MAGIC) : start], "little")
    header = _HEADER.fullmatch(content[start:end])
    if not content.startswith(_MAGIC) or end > len(content) or header is None:
        raise PolicyError(f"{where}: not an array as adaspec writes them: restore it from a copy")
    dtype = _DTYPES.get(header[1].decode("ascii"))
    if dtype is None:
        raise PolicyError(f"{where}: is of {header[1].decode('ascii')}, which no policy holds")
    shape = tuple(int(size) for size in header[2].split(b",") if size.strip())
    if len(shape) > MAX_DIMENSIONS:
        raise PolicyError(f"{where}: has {len(shape)} dimensions, too many")
    if math.prod(shape) * dtype.itemsize != len(content) - end:
        raise PolicyError(
            f"{where}: shape {shape} of {dtype} is not the {len(content) - end} bytes it has"
        )
    if dtype == np.bool_ and max(content[end:], default=0) > 1:
        raise PolicyError(f"{where}: holds truth values that are neither true nor false")
    # A copy: aligned, writable, and free of the file's other bytes.
    return np.frombuffer(content, dtype, offset=end).reshape(shape).copy()


def _one_line(what: object) -> str:
    text = " ".join(str(what).split())
    return text if len(text) <= 80 else text[:77] + "..."
