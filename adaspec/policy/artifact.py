"""A policy as a folder: written whole or not at all, read without running anything in it.

Its manifest says what it was trained on, what it fits, and what was tuned with it. The policies
that come with adaspec go by their names, from a wheel and from a checkout alike.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct, structs
from numpy.typing import NDArray

from adaspec.cost import ASYNC, Engine
from adaspec.errors import CostError, PolicyError, nearest, shown
from adaspec.files import Kind, new_folder
from adaspec.records import Text, convert, parse_json, read_file, upgraded
from adaspec.trace.schema import VocabularyHash
from adaspec.version import __version__

if TYPE_CHECKING:
    from adaspec.cost.model import CostModel

SCHEMA = 4
"""Schema of the whole folder, arrays included."""

Source = Literal["ngram", "neural", "splice"]
Evidence = Literal["tokens", "confidences"]
"""What a drafter may show of a draft: which tokens, and how sure it was of each."""
Cap = Annotated[int, Meta(ge=1, le=1000)]
Load = Annotated[int, Meta(ge=1)]


class PolicyManifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a policy says of itself; what is unknown is None."""

    features: Annotated[int, Meta(ge=1)]
    """The `predict.features.FEATURES_VERSION` that it was trained for."""
    sources: Annotated[tuple[Source, ...], Meta(min_length=1)]
    """The drafters that it may use."""
    cap: Cap
    """The longest draft it asks for."""
    neural_cap: Cap | None
    """The longest neural draft; None where it knows no neural drafter."""
    cost: Text
    """The name of the cost model it was tuned with."""
    training_requests: tuple[
        Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z", description="16 hex digits")], ...
    ]
    """Content hashes of all training requests, ascending."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    evidence: tuple[Evidence, ...] = ()
    """What the training traces showed."""
    target: Text | None = None
    tokenizer: Text | None = None
    vocabulary_hash: VocabularyHash | None = None
    """Hash of the vocabulary of its tables, or its size where its traces held no more."""
    drafter: Text | None = None
    metrics: dict[str, Any] = {}
    """Results on held-out requests: numbers and texts by name, nested."""
    engine: Engine = ASYNC
    """The engine at whose costs it was settled at which loads the drafter pays."""
    forwards: dict[Load, int] = {}
    """Forwards of the drafter in a first step, by concurrency; 0 where the drafter does not pay."""
    step_costs: dict[str, Any] | None = None
    """The cost model as a cost file holds it, because its name may mean nothing elsewhere."""
    adaspec_version: Text = __version__
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Refuse what contradicts itself: a server relies on these fields."""
        if self.neural_cap is not None and self.neural_cap > self.cap:
            raise PolicyError(f"neural_cap is {self.neural_cap}, more than the cap {self.cap}")
        if ("neural" in self.sources) != (self.neural_cap is not None):
            raise PolicyError(
                f"neural_cap is {self.neural_cap}, which does not fit sources {self.sources}"
            )
        most = self.neural_cap or 0
        for load, forwards in self.forwards.items():
            if not 0 <= forwards <= most:
                raise PolicyError(
                    f"forwards has {forwards} at {load}, and neural_cap allows 0 to {most}"
                )
        if self.step_costs is not None:
            try:
                name = self.cost_model.name  # type: ignore[union-attr]
            except CostError as error:
                raise PolicyError(str(error)) from None
            if name != self.cost:
                raise PolicyError(
                    f"step_costs are of {shown(name)}, and cost is {shown(self.cost)}"
                )

    @property
    def cost_model(self) -> CostModel | None:
        """The cost model it was tuned with; None where neither it nor this build has that."""
        # Imported here: cost models compile, and whoever lists policies need not wait for that.
        from adaspec.cost.load import BUILTIN, cost_from_document

        if self.step_costs is not None:
            return cost_from_document(self.step_costs, "step_costs")
        return BUILTIN.get(self.cost)

    def to_json(self) -> str:
        """The manifest as `manifest.json` holds it: keys sorted, so same content, same bytes."""
        # Loads are texts from the start: JSON has no other keys, and would sort numbers by value.
        forwards = {str(load): count for load, count in self.forwards.items()}
        record = structs.asdict(self) | {"forwards": forwards}
        return json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> PolicyManifest:
        """The manifest in `text`; raises a `PolicyError` that starts with `where` if it is none."""
        record = parse_json(text, where, PolicyError, "restore it from a copy")
        values = upgraded(record, "a policy's manifest", SCHEMA, where, PolicyError)
        if record["schema"] != SCHEMA:
            raise PolicyError(
                f"{where}: schema {shown(record['schema'])} is of another adaspec, whose features "
                "differ: train the policy again with 'adaspec train'"
            )
        return convert(values, cls, where, PolicyError)


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
