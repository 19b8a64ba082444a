"""What a server has learned, on disk for one that is started again; only with `learned_dir`.

It is how much longer steps take than the cost model says, and how far each source's predictions
were off: no text, and nothing of single requests.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np

from adaspec.cost.refit import CostRefit
from adaspec.documents import read_json
from adaspec.errors import ServingError
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import RECORD
from adaspec.vllm.events import Observer, Serving
from adaspec.vllm.patching import in_one_line

log = logging.getLogger("vllm.adaspec")

PERIOD_S = 300.0
"""So many seconds of learning a kill may cost."""
_MAX_BYTES = 1 << 20


class KeptLearning(Observer):
    """Writes what a policy has learned to a file now and then, and when the process ends."""

    def __init__(self, path: Path, policy: LearnedPolicy, serving: Serving) -> None:
        self._path, self._policy, self._serving = path, policy, serving
        self._written_s = time.monotonic()
        # A `Finalize` runs when a worker process ends; `atexit` handlers may not.
        self._finalizer = Finalize(self, self._write, exitpriority=10)

    def learned(self, factors: list[float], came: list[float]) -> None:
        """Write, if it is time."""
        if time.monotonic() - self._written_s >= PERIOD_S:
            self._write()

    def close(self) -> None:
        """Write what has come since."""
        self._finalizer()

    def _write(self) -> None:
        self._written_s = time.monotonic()
        write_learned(self._path, contents_of(self._policy, self._serving))


def learned_file(folder: str | None, replica: int | None) -> Path | None:
    """The file in which an engine keeps what it has learned."""
    if folder is None:
        return None
    return Path(folder) / ("learned.json" if replica is None else f"learned-{replica}.json")


def keeping_learned(serving: Serving, policy: Any) -> list[Observer]:
    """What keeps a policy's learning in the operator's file, if any; meant for the first rank."""
    if serving.learned_file is None or _refit_of(policy) is None:
        return []
    return [KeptLearning(serving.learned_file, policy, serving)]


def restore_learned(serving: Serving, policy: Any) -> None:
    """Have a policy that was just started know what is in the operator's file, if it fits."""
    refit, path = _refit_of(policy), serving.learned_file
    if refit is None or path is None or not path.exists():
        return
    try:
        content = read_json(path, ServingError, "remove it", _MAX_BYTES)
        if content.get("of") != contents_of(policy, serving)["of"]:
            raise ServingError("it is of another policy or cost model")
        record = np.array([tuple(each) for each in content["record"]], RECORD)
        values = record.view(np.float64)
        if len(record) != len(policy.planner.memory.record):
            raise ServingError("its record is of other sources")
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ServingError("its record is no record")
        refit.restore(content["loads"])
        policy.planner.memory.record[:] = record
    except Exception as error:  # whatever stands in a file
        log.warning("adaspec: what was learned is left out: %s: %s", path, in_one_line(error))


def contents_of(policy: LearnedPolicy, serving: Serving) -> dict[str, Any]:
    """What a file holds of a started policy."""
    refit = _refit_of(policy)
    assert refit is not None
    return {
        "of": {
            "policy": serving.policy,
            "version": serving.version,
            "costs": [np.asarray(value).tolist() for value in refit.costs],
        },
        "loads": refit.state(),
        "record": [list(each) for each in policy.planner.memory.record.tolist()],
    }


def write_learned(path: Path, content: dict[str, Any]) -> None:
    """Put a file in the place of the one before, or say in the log why that is not possible."""
    staged = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, staged = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
        Path(staged).replace(path)
    except OSError as error:
        log.warning("adaspec: what was learned is not written: %s: %s", path, in_one_line(error))
        if staged is not None:
            Path(staged).unlink(missing_ok=True)


def _refit_of(policy: Any) -> CostRefit | None:
    return policy.refit if isinstance(policy, LearnedPolicy) else None
