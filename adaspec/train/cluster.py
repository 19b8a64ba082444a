"""A Dask cluster that takes rollouts, and the fits that are worth the way there.

A cluster is borrowed and may shrink under one's hands. What it does not bring back is done on this
machine, and said once; the policy that comes out is of the same quality either way.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import lightgbm

from adaspec.errors import TrainingError
from adaspec.train.examples import Array, Floats
from adaspec.train.training import Trainer

CONNECT_S = 10.0
"""How long a scheduler may take to answer, or to have workers."""
GONE_S = 30.0
"""How long it may be without any worker before it is given up."""
_POLL_S = 0.5
MIN_EXAMPLES = 100_000
"""A fit of fewer examples takes less time here than the workers need to find each other."""
_ESTIMATORS = {"binary": "DaskLGBMClassifier", "regression": "DaskLGBMRegressor"}
_HERE = ("num_threads", "objective")
"""Parameters that Dask's estimators set themselves."""


class _Lost(Exception):
    """What was sent to the cluster does not come back."""


class Cluster:
    """Workers behind one scheduler's address; close it, or use it in a `with`."""

    def __init__(
        self,
        address: str,
        say: Callable[[str], None] = lambda what: None,
        min_examples: int = MIN_EXAMPLES,
    ) -> None:
        """`say` hears, once, that something had to be done on this machine after all."""
        self.address, self._say, self._fewest = address, say, min_examples
        self._lost = False
        self._sent: dict[int, tuple[Trainer, Any]] = {}
        self.fits = self.tasks = 0
        """What the cluster has brought back."""
        self._client = self._connected()
        until = time.monotonic() + CONNECT_S
        while not self._workers():
            if time.monotonic() > until:
                self._client.close()
                raise TrainingError(
                    f"the Dask scheduler at {address} has no workers: start some with "
                    f"`dask worker {address}`"
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the cluster, which goes on without us."""
        self._sent.clear()
        self._client.close(timeout=5)

    def spread(self, method: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """What `map` gives of a trainer's method, each call on whichever worker is free."""
        calls = list(zip(*arguments, strict=True))
        if not self._lost:
            try:
                return self._far(method, calls)
            except _Lost as error:
                self._give_up(error)
        return [method(*call) for call in calls]

    def boost(
        self,
        x: Floats,
        y: Array,
        weight: Array,
        names: tuple[str, ...],
        parameters: dict[str, object],
        rounds: int,
    ) -> lightgbm.Booster | None:
        """The trees that all workers grow together; None where this machine had better do it."""
        objective = str(parameters["objective"])
        if self._lost or len(y) < self._fewest or objective not in _ESTIMATORS:
            return None
        try:
            booster = self._grown(x, y, weight, parameters, rounds)
        except _Lost as error:
            self._give_up(error)
            return None
        self.fits += 1
        return _named(booster, names)

    def _far(self, method: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
        trainer, name = method.__self__, method.__name__  # type: ignore[attr-defined]
        try:
            if id(trainer) not in self._sent:
                sent = self._client.scatter(trainer.portable(), broadcast=True, hash=False)
                self._sent[id(trainer)] = (trainer, sent)
            far = self._sent[id(trainer)][1]
            futures = [self._client.submit(_call, far, name, call, pure=False) for call in calls]
            alone_since = None
            while not all(future.done() for future in futures):
                time.sleep(0.05)
                if self._workers():
                    alone_since = None
                elif alone_since is None:
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > GONE_S:
                    raise _Lost(f"no worker has been there for {GONE_S:.0f} s")
            found = [future.result() for future in futures]
        except _Lost:
            raise
        except Exception as error:
            raise _Lost(_in_short(error)) from error
        self.tasks += len(found)
        return found

    def _grown(
        self, x: Floats, y: Array, weight: Array, parameters: dict[str, object], rounds: int
    ) -> lightgbm.Booster:
        """Grow trees in a thread of its own: it would wait for a killed worker for ever."""
        from dask import array as dask_array
        from lightgbm import dask as estimators

        pids = self._pids()
        rows = -(-len(y) // max(1, len(pids)))
        own = {name: value for name, value in parameters.items() if name not in _HERE}
        kind = getattr(estimators, _ESTIMATORS[str(parameters["objective"])])
        estimator = kind(client=self._client, n_estimators=rounds, **own)
        parts = [dask_array.from_array(x, chunks=(rows, x.shape[1]))]
        parts += [dask_array.from_array(each, chunks=rows) for each in (y, weight)]
        found: list[Any] = []

        def grow() -> None:
            try:
                # LightGBM waits for its data with whichever client is the current one.
                with self._client.as_current():
                    estimator.fit(parts[0], parts[1], sample_weight=parts[2])
                    found.append(estimator.booster_)
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=grow, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_S)
            if thread.is_alive() and self._pids() != pids:
                thread.join(4 * _POLL_S)
                if thread.is_alive():
                    raise _Lost("a worker was lost while trees were grown")
        if isinstance(found[0], Exception):
            raise _Lost(_in_short(found[0])) from found[0]
        booster: lightgbm.Booster = found[0]
        return booster

    def _give_up(self, error: _Lost) -> None:
        self._lost = True
        self._sent.clear()
        self._say(f"Dask at {self.address}: {error}: going on on this machine alone")
        # Whoever still waits for it in a thread is told that it will not come.
        self._client.close(timeout=5)

    def _connected(self) -> Any:
        try:
            importlib.import_module("dask.dataframe")  # LightGBM's estimators want it
            from dask.distributed import Client
        except ImportError as error:
            raise TrainingError(
                f"--dask needs Dask ({_in_short(error)}): pip install 'adaspec[dask]'"
            ) from error
        try:
            return Client(self.address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise TrainingError(
                f"no Dask scheduler answers at '{self.address}' ({_in_short(error)}): start one "
                "with `dask scheduler`, and give its address, such as tcp://HOST:8786"
            ) from error

    def _workers(self) -> list[str]:
        if self._client.status != "running":
            return []
        return list(self._client.scheduler_info()["workers"])

    def _pids(self) -> dict[str, int]:
        """Process ids by worker: one that was started again has another."""
        try:
            found = self._client.run(os.getpid, on_error="ignore")
        except Exception:
            return {}
        return {str(name): int(pid) for name, pid in found.items()}


def _call(trainer: Trainer, name: str, call: tuple[Any, ...]) -> Any:
    return getattr(trainer, name)(*call)


def _named(booster: lightgbm.Booster, names: tuple[str, ...]) -> lightgbm.Booster:
    """The same trees, over features of our names: Dask's estimators number them."""
    lines = booster.model_to_string(num_iteration=-1).splitlines(keepends=True)
    text = "".join(
        f"feature_names={' '.join(names)}\n" if line.startswith("feature_names=") else line
        for line in lines
    )
    return lightgbm.Booster(model_str=text)


def _in_short(error: Exception) -> str:
    """An error on one line."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 160 else words[:157] + "..."
