"""A Dask cluster that surveys requests, replays them, and grows trees.

A cluster may lose its workers at any time. This machine then does the work that did not come back,
and the user is told once; the policy is of the same quality either way.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from threading import Lock
from typing import Any

import lightgbm

from adaspec.errors import TrainingError
from adaspec.train.heads import grow
from adaspec.train.rows import Array, Floats

CONNECT_S = 10.0
"""Seconds within which a scheduler must answer and have workers."""
ATTEMPTS = 3
"""How often Dask's client is started anew."""
GONE_S = 30.0
"""Seconds without workers after which the cluster is given up."""
LEAST_ROWS = 50_000
"""Fewer rows are sooner fitted here than sent."""


class Cluster(AbstractContextManager["Cluster"]):
    """The workers of one scheduler, connected to until the end of a `with`."""

    def __init__(self, address: str, say: Callable[[str], None] = lambda what: None) -> None:
        """Call `say` once, if work has to be done on this machine after all."""
        self.address, self._say = address, say
        self._lost, self._growing = False, Lock()
        self._sent: tuple[Any, Any] = None, None
        """The trainer whose methods were called last, and where it is on the workers."""
        try:
            self._client = _connected(address)
            self._client.wait_for_workers(1, timeout=CONNECT_S)
        except ImportError as error:
            raise TrainingError(
                f"--dask needs Dask ({_in_short(error)}): pip install 'adaspec[dask]'"
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise TrainingError(
                f"no Dask scheduler with workers answers at '{address}' ({_in_short(error)}): "
                "start `dask scheduler`, then `dask worker` with its address, and give that, such "
                "as tcp://HOST:8786"
            ) from error

    def __exit__(self, *_: object) -> None:
        """Disconnect; the cluster itself keeps running."""
        self._client.close(timeout=5)

    def spread(self, method: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Call a trainer's method for many arguments, as `map` does, on the free workers."""
        calls = list(zip(*arguments, strict=True))
        there = self._tried(lambda: self._called(method, calls))
        return [method(*each) for each in calls] if there is None else list(there)

    def grow(
        self, x: Floats, y: Array, names: tuple[str, ...], parameters: dict[str, Any], rounds: int
    ) -> lightgbm.Booster:
        """One head's trees, grown by all workers, each on a part of the rows."""
        there = None
        if len(y) >= LEAST_ROWS:
            # A worker can take part in one training at a time.
            with self._growing:
                there = self._tried(lambda: self._fitted(x, y, names, parameters, rounds))
        return grow(x, y, names, parameters, rounds) if there is None else there.booster_

    def _tried(self, work: Callable[[], Any]) -> Any:
        """What the cluster makes of it; None, and no further attempts, if it is lost."""
        try:
            return None if self._lost else work()
        except Exception as error:
            self._lost = True
            self._say(f"Dask at {self.address}: {_in_short(error)}: going on on this machine alone")
            self.__exit__()
            return None

    def _called(self, method: Any, calls: list[tuple[Any, ...]]) -> list[Any]:
        trainer, function = method.__self__, method.__func__
        if self._sent[0] is not trainer:
            scattered = self._client.scatter(trainer.portable(), broadcast=True, hash=False)
            self._sent = trainer, scattered
        there = self._sent[1]
        futures = [self._client.submit(function, there, *call, pure=False) for call in calls]
        self._await(futures, lambda: bool(self._workers()))
        return [future.result() for future in futures]

    def _fitted(self, x: Floats, y: Array, names: Any, given: dict[str, Any], rounds: int) -> Any:
        from dask import array

        binary = given["objective"] == "binary"
        kind = lightgbm.DaskLGBMClassifier if binary else lightgbm.DaskLGBMRegressor
        workers = self._workers()
        rows = -(-len(y) // len(workers))
        parts = array.from_array(x, (rows, -1)), array.from_array(y, rows)
        settings = {key: value for key, value in given.items() if key != "num_threads"}
        model = kind(client=self._client, n_estimators=rounds, **settings)

        def fit() -> Any:
            # LightGBM waits for its parts by the client that is current.
            with self._client.as_current():
                return model.fit(*parts, feature_name=list(names))

        pool = ThreadPoolExecutor(1)
        fitted = pool.submit(fit)
        pool.shutdown(wait=False)
        # Workers that grow trees together wait for each other, also for one that is gone.
        self._await([fitted], lambda: workers <= self._workers())
        return fitted.result()

    def _await(self, futures: list[Any], are_there: Callable[[], bool]) -> None:
        last_seen = time.monotonic()
        while not all(future.done() for future in futures):
            time.sleep(0.05)
            if are_there():
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > GONE_S:
                raise TimeoutError(f"no answer, as workers have been gone for {GONE_S:.0f} s")

    def _workers(self) -> set[str]:
        running = self._client.status == "running"
        return set(self._client.scheduler_info()["workers"]) if running else set()


def _connected(address: str) -> Any:
    from dask.distributed import Client

    for _ in range(ATTEMPTS):
        # Dask asserts that a thread of its own has started in 10 s, which a busy machine can miss.
        with suppress(AssertionError):
            return Client(address, timeout=CONNECT_S, set_as_default=False)
    raise TimeoutError(f"Dask's client did not start, tried {ATTEMPTS} times")


def _in_short(error: Exception) -> str:
    return textwrap.shorten(str(error) or type(error).__name__, 160, placeholder="...")
