"""A policy as a folder: written whole or not at all, read without running anything in it.

Those that come with adaspec go by their names, from a wheel and from a checkout alike.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError, nearest
from adaspec.files import Kind, new_folder
from adaspec.policy.manifest import PolicyManifest
from adaspec.records import read_file

CHECKSUMS = "SHA256SUMS"
MANIFEST = "manifest.json"
NETWORK = "network.npz"
TABLES = "tables.npz"
MODEL = "model.txt"
CARD = "CARD.md"

MAX_BYTES = {
    CARD: 4 << 20,
    MANIFEST: 64 << 20,
    MODEL: 128 << 20,
    NETWORK: 64 << 20,
    TABLES: 20_000_000,
    CHECKSUMS: 4096,
}
"""The files of a policy's folder, all of them, and how large each may be."""

Arrays = dict[str, NDArray[Any]]
_KINDS = "biuf"
"""What arrays may hold: truth values and numbers."""

KIND = Kind("a policy", CHECKSUMS, MAX_BYTES.__contains__, PolicyError)
_SUMMED = sorted(set(MAX_BYTES) - {CHECKSUMS})
_RECOVER = "restore the folder from a copy"

GENERAL = "general"
"""The policy for every model; it serves where none was made for a model."""

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_WHEEL = _PACKAGE / "_policies"
_IN_CHECKOUT = _PACKAGE.parent / "policies"
_PYPROJECT = _PACKAGE.parent / "pyproject.toml"


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """A policy's folder as read, with all checksums verified.

    What the arrays mean is not checked here, but before they are used.
    """

    manifest: PolicyManifest
    networks: Arrays
    tables: Arrays
    path: Path

    @property
    def name(self) -> str:
        """What reports call the policy: its folder's name."""
        return self.path.resolve().name


def write_artifact(
    folder: Path,
    manifest: PolicyManifest,
    networks: Mapping[str, NDArray[Any]],
    tables: Mapping[str, NDArray[Any]],
    model_text: str,
    card: str,
    force: bool = False,
) -> None:
    """Write a policy's folder, all or nothing; the same content gives the same bytes.

    `force` only replaces a folder that holds a policy and nothing else.
    """
    contents = {
        MANIFEST: manifest.to_json().encode(),
        NETWORK: _npz_of(networks, f"{folder / NETWORK}"),
        TABLES: _npz_of(tables, f"{folder / TABLES}"),
        MODEL: model_text.encode(),
        CARD: card.encode(),
    }
    for name, content in contents.items():
        if len(content) > MAX_BYTES[name]:
            raise PolicyError(
                f"{folder / name}: {len(content)} bytes are more than the {MAX_BYTES[name]} that "
                "would be read again: train a smaller policy"
            )
    contents[CHECKSUMS] = checksums(contents)
    with new_folder(folder, KIND, force) as staged:
        for name, content in contents.items():
            (staged / name).write_bytes(content)


def load_artifact(folder: str | Path) -> Artifact:
    """The policy in `folder`, every byte of it checked; a `PolicyError` if anything is wrong."""
    path = Path(folder)
    _check_names(path)
    # Read once: what is checked is what is parsed.
    contents = {
        name: read_file(path / name, PolicyError, _RECOVER, limit)
        for name, limit in MAX_BYTES.items()
    }
    _check_sums(contents, path)
    manifest = PolicyManifest.from_json(contents[MANIFEST], str(path / MANIFEST))
    return Artifact(
        manifest=manifest,
        networks=_arrays_in(contents[NETWORK], str(path / NETWORK)),
        tables=_arrays_in(contents[TABLES], str(path / TABLES)),
        path=path,
    )


def shipped_policies() -> dict[str, Path]:
    """The folder of every shipped policy by its name; empty where none came along."""
    # A folder of that name in site-packages is not a checkout's.
    homes = (_IN_WHEEL, _IN_CHECKOUT) if _PYPROJECT.is_file() else (_IN_WHEEL,)
    for home in homes:
        if home.is_dir():
            return {each.parent.name: each.parent for each in sorted(home.glob(f"*/{MANIFEST}"))}
    return {}


def find_policy(name_or_path: str | Path) -> Path:
    """The folder that is meant: an existing one, or a shipped policy's by its name."""
    path = Path(name_or_path)
    if path.is_dir():
        return path
    if path.exists():
        raise PolicyError(f"{path}: is a file: give a policy's folder, or a shipped policy's name")
    shipped = shipped_policies()
    name = str(name_or_path)
    if name in shipped:
        return shipped[name]
    known = f"shipped are {', '.join(shipped)}" if shipped else "none is shipped with this build"
    raise PolicyError(
        f"{name}: neither a folder nor a shipped policy{nearest(name, shipped)}: "
        f"give the folder of a trained policy ({known})"
    )


def _npz_of(arrays: Mapping[str, NDArray[Any]], where: str) -> bytes:
    """The arrays as an .npz file; the same names and values give the same bytes."""
    content = io.BytesIO()
    plain: dict[str, Any] = {}
    for name in sorted(arrays):
        dtype = np.asarray(arrays[name]).dtype
        if dtype.kind not in _KINDS:
            raise PolicyError(f"{where}: array {name!r} is of {dtype}")
        plain[name] = np.asarray(arrays[name], dtype.newbyteorder("<"), order="C")
    np.savez(content, **plain)
    return content.getvalue()


def _arrays_in(content: bytes, where: str) -> Arrays:
    """The arrays of an .npz file; no code is run, and no more is unpacked than it has bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > len(content):
                raise ValueError("its arrays claim more bytes than it has")
        with np.load(io.BytesIO(content), allow_pickle=False) as held:
            arrays = dict(held)
        odd = next((array for array in arrays.values() if array.dtype.kind not in _KINDS), None)
        if odd is not None:
            raise ValueError(f"holds an array of {odd.dtype}")
        return arrays
    except Exception as error:  # zipfile raises far more over crafted files than it says
        what = " ".join(str(error).split())[:80]
        raise PolicyError(
            f"{where}: damaged ({type(error).__name__}: {what}): {_RECOVER}"
        ) from None


def checksums(contents: Mapping[str, bytes]) -> bytes:
    """`SHA256SUMS` of these files by name, as `sha256sum` writes and checks it."""
    lines = [f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in sorted(contents)]
    return "".join(lines).encode()


def _check_names(path: Path) -> None:
    try:
        names = {file.name for file in path.iterdir()}
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror}): {_RECOVER}") from error
    for name in sorted(names - MAX_BYTES.keys()):
        raise PolicyError(
            f"{path}: holds {name!r}, which no policy of this build does"
            f"{nearest(name, MAX_BYTES)}: {_RECOVER}, or train it again with 'adaspec train'"
        )
    for name in sorted(MAX_BYTES.keys() - names):
        raise PolicyError(f"{path / name}: is missing: {_RECOVER}")


def _check_sums(contents: Mapping[str, bytes], path: Path) -> None:
    stated = contents[CHECKSUMS].splitlines(keepends=True)
    actual = checksums({name: contents[name] for name in _SUMMED}).splitlines(keepends=True)
    if stated != actual:
        pairs = zip(_SUMMED, actual, strict=True)
        name = next((name for name, line in pairs if line not in stated), CHECKSUMS)
        raise PolicyError(
            f"{path / name}: does not pass the SHA-256 check of {CHECKSUMS}: {_RECOVER}, nothing "
            "in it can be trusted"
        )
