"""What a path holds (a trace, a policy, a cost model), how large it is, whether it is sound."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from adaspec.cost.builtin import BUILTIN
from adaspec.cost.load import load_cost, read_cost
from adaspec.cost.model import CostModel
from adaspec.cost.report import FitReport
from adaspec.errors import AdaspecError, SpecError
from adaspec.evaluate.acceptance import WorkloadAcceptance
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader

SCHEMA = 1

CHECKSUMS = "SHA256SUMS"
"""What a policy folder has and a trace has not."""

Progress = Callable[[str, float, float], None]
"""Called as (stage, done, total)."""


@dataclass(frozen=True, slots=True)
class TraceInspection:
    """A trace that was read to its last row."""

    path: Path
    manifest: Manifest
    shards: int
    rows: int
    bytes: int
    workloads: list[WorkloadAcceptance]
    warnings: list[str]

    def document(self) -> dict[str, Any]:
        """The inspection in JSON's own types."""
        return {
            **_head("trace", self.path, self.bytes, self.warnings),
            "manifest": json.loads(self.manifest.to_json()),
            "shards": self.shards,
            "rows": self.rows,
            "workloads": [workload.document() for workload in self.workloads],
        }


@dataclass(frozen=True, slots=True)
class PolicyInspection:
    """A policy folder whose files are those its checksums name."""

    path: Path
    manifest: dict[str, Any]
    files: dict[str, int]
    """Bytes by name."""
    warnings: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The inspection in JSON's own types."""
        return {
            **_head("policy", self.path, sum(self.files.values()), self.warnings),
            "manifest": self.manifest,
            "files": self.files,
        }


@dataclass(frozen=True, slots=True)
class CostInspection:
    """A cost model, and how well it fitted where its file says so."""

    path: Path | None
    """None for a builtin one."""
    cost: CostModel
    fit: FitReport | None
    bytes: int = 0
    warnings: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The inspection in JSON's own types."""
        return {
            **_head("cost", self.path, self.bytes, self.warnings),
            "cost": dataclasses.asdict(self.cost),
            "fit": None if self.fit is None else self.fit.document(),
        }


Inspection = TraceInspection | PolicyInspection | CostInspection


def inspect(path: Path, progress: Progress | None = None) -> Inspection:
    """What lies at `path`, every row and checksum of it checked; unsound is an `AdaspecError`."""
    if not path.exists():
        if str(path) in BUILTIN:
            return CostInspection(None, load_cost(str(path)), None)
        raise AdaspecError(
            f"{path}: there is nothing there: give a trace's or policy's folder, or a cost file"
        )
    if path.is_file():
        cost, fit = read_cost(path)
        return CostInspection(path, cost, fit, path.stat().st_size)
    if (path / CHECKSUMS).exists():
        return _inspect_policy(path)
    return _inspect_trace(path, progress)


def _inspect_trace(path: Path, progress: Progress | None) -> TraceInspection:
    reader = TraceReader(path)
    workloads: dict[str, WorkloadAcceptance] = {}

    def workload(name: str) -> WorkloadAcceptance:
        return workloads.setdefault(name, WorkloadAcceptance(name))

    def report(done: int) -> None:
        if progress is not None:
            progress("reading the trace", done, reader.rows)

    if reader.manifest.kind == "dense":
        for done, request in enumerate(reader.requests(), 1):
            workload(request.workload).add_request(request, reader.manifest.neural_cap)
            report(done)
    else:
        ids: dict[str, set[str]] = {}
        for done, step in enumerate(reader.steps(), 1):
            workload(step.workload).add_step(step)
            ids.setdefault(step.workload, set()).add(step.id)
            report(done)
        for name, seen in ids.items():
            workloads[name].requests = len(seen)
    return TraceInspection(
        path=path,
        manifest=reader.manifest,
        shards=len(reader.shards),
        rows=reader.rows,
        bytes=reader.bytes,
        workloads=list(workloads.values()),
        warnings=list(reader.warnings),
    )


def _inspect_policy(path: Path) -> PolicyInspection:
    expected = _checksums(path / CHECKSUMS)
    files: dict[str, int] = {}
    for name, digest in expected.items():
        file = path / name
        if not file.is_file():
            raise SpecError(f"{file}: is missing, though {CHECKSUMS} names it: restore the folder")
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != digest:
            raise SpecError(
                f"{file}: its SHA-256 is {found[:12]}..., {CHECKSUMS} says {digest[:12]}...:"
                " restore the folder, nothing in it can be trusted"
            )
        files[name] = file.stat().st_size
    if "manifest.json" not in expected:
        raise SpecError(f"{path / CHECKSUMS}: does not name manifest.json: not a policy's folder")
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpecError(f"{path / 'manifest.json'}: not JSON ({error})") from None
    if not isinstance(manifest, dict) or "schema" not in manifest:
        raise SpecError(f"{path / 'manifest.json'}: not a policy's manifest: it has no 'schema'")
    strays = sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file() and str(file.relative_to(path)) not in {*expected, CHECKSUMS}
    )
    warnings = [f"{path / name}: no checksum vouches for it" for name in strays]
    return PolicyInspection(path, manifest, files, warnings)


def _checksums(file: Path) -> dict[str, str]:
    """SHA-256 by file name, of a file as `sha256sum` writes it."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise SpecError(f"{file}: not a list of checksums") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        digest, _, name = line.partition(" ")
        name = name.removeprefix(" ").removeprefix("*")
        inside = PurePosixPath(name)
        whole = len(digest) == 64 and set(digest) <= set("0123456789abcdef")
        if not whole or not name or inside.is_absolute() or ".." in inside.parts:
            raise SpecError(f"{file} line {number}: not a checksum of a file of this folder")
        found[name] = digest
    return found


def _head(what: str, path: Path | None, size: int, warnings: list[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "what": what,
        "path": None if path is None else str(path),
        "bytes": size,
        "sound": not warnings,
        "warnings": warnings,
    }
