"""What a path holds (a trace, a policy, a cost model), how large it is, whether it is sound."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaspec.arguments import AnyPath, path_of
from adaspec.cost.builtin import BUILTIN
from adaspec.cost.load import FitReport, load_cost, read_cost
from adaspec.cost.model import CostModel
from adaspec.errors import AdaspecError, nearest
from adaspec.evaluate.acceptance import WorkloadAcceptance
from adaspec.policy.artifact import CHECKSUMS, FOREST, Artifact, load_artifact
from adaspec.policy.learned import policy_from
from adaspec.policy.manifest import PolicyManifest
from adaspec.policy.shipped import shipped_policies
from adaspec.predict.model import feature_fingerprint
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader

SCHEMA = 1

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
    """A policy folder that loads; one trained for features of another build is looked at alone."""

    path: Path
    manifest: PolicyManifest
    files: dict[str, int]
    """Bytes by name."""
    counts: dict[str, int]
    """Arrays and values of forest and tables."""
    warnings: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The inspection in JSON's own types."""
        return {
            **_head("policy", self.path, sum(self.files.values()), self.warnings),
            "manifest": json.loads(self.manifest.to_json()),
            "files": self.files,
            "counts": self.counts,
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


def inspect(path: AnyPath, progress: Progress | None = None) -> Inspection:
    """What lies at `path`, every row and checksum of it checked; unsound is an `AdaspecError`."""
    path = path_of(path, "what to inspect", AdaspecError)
    if not path.exists():
        if str(path) in BUILTIN:
            return CostInspection(None, load_cost(str(path)), None)
        shipped = shipped_policies()
        if str(path) in shipped:
            return _inspect_policy(shipped[str(path)])
        raise AdaspecError(
            f"{path}: there is nothing there{nearest(str(path), [*BUILTIN, *shipped])}: "
            "give a trace's or policy's folder, or a cost file"
        )
    if path.is_file():
        if path.suffix == ".jsonl":
            raise AdaspecError(
                f"{path}: JSON lines, not a trace's folder: 'adaspec import' makes a trace of them"
            )
        cost, fit = read_cost(path)
        return CostInspection(path, cost, fit, path.stat().st_size)
    if any((path / name).exists() for name in (CHECKSUMS, FOREST)):  # a trace has neither
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
    found = load_artifact(path)
    if found.manifest.fingerprint == feature_fingerprint():
        policy_from(found)
    return PolicyInspection(path, found.manifest, found.files, _counts(found))


def _counts(found: Artifact) -> dict[str, int]:
    return {
        "forest_arrays": len(found.forest),
        "forest_values": sum(array.size for array in found.forest.values()),
        "tables_arrays": len(found.tables),
        "tables_values": sum(array.size for array in found.tables.values()),
    }


def _head(what: str, path: Path | None, size: int, warnings: list[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "what": what,
        "path": None if path is None else str(path),
        "bytes": size,
        "sound": not warnings,
        "warnings": warnings,
    }
