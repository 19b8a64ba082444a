"""A Dask cluster that runs rollouts.

A cluster may lose its workers at any time. This machine then does the work that did not come back,
and the user is told once; the policy is of the same quality either way.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

from adaspec.errors import TrainingError
from adaspec.train.training import Trainer

CONNECT_S = 10.0
"""Seconds within which a scheduler must answer and have workers."""
GONE_S = 30.0
"""Seconds without any worker after which the cluster is given up."""
_POLL_S = 0.5


class _Lost(Exception):
    """Work that was sent to the cluster will not come back."""


class Cluster:
    """The workers of one scheduler; close it, or use it in a `with`."""

    def __init__(self, address: str, say: Callable[[str], None] = lambda what: None) -> None:
        """Call `say` once, if work has to be done on this machine after all."""
        self.address, self._say = address, say
        self._lost = False
        self._sent: dict[int, tuple[Trainer, Any]] = {}
        self._client = self._connected()
        deadline = time.monotonic() + CONNECT_S
        while not self._workers():
            if time.monotonic() > deadline:
                self._client.close()
                raise TrainingError(
                    f"the Dask scheduler at {address} has no workers: start some with "
                    f"`dask worker {address}`"
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; the cluster itself keeps running."""
        self._sent.clear()
        self._client.close(timeout=5)

    def spread(self, method: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Call a trainer's method for many arguments, as `map` does, on the free workers."""
        calls = list(zip(*arguments, strict=True))
        if not self._lost:
            try:
                return self._far(method, calls)
            except _Lost as error:
                self._give_up(error)
        return [method(*call) for call in calls]

    def _far(self, method: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
        trainer, name = method.__self__, method.__name__  # type: ignore[attr-defined]
        try:
            if id(trainer) not in self._sent:
                scattered = self._client.scatter(trainer.portable(), broadcast=True, hash=False)
                self._sent[id(trainer)] = (trainer, scattered)
            _, remote_trainer = self._sent[id(trainer)]
            futures = [
                self._client.submit(_call, remote_trainer, name, call, pure=False) for call in calls
            ]
            last_seen = time.monotonic()
            while not all(future.done() for future in futures):
                time.sleep(0.05)
                if self._workers():
                    last_seen = time.monotonic()
                elif time.monotonic() - last_seen > GONE_S:
                    raise _Lost(f"no worker has been there for {GONE_S:.0f} s")
            return [future.result() for future in futures]
        except _Lost:
            raise
        except Exception as error:
            raise _Lost(_in_short(error)) from error

    def _give_up(self, error: _Lost) -> None:
        self._lost = True
        self._sent.clear()
        self._say(f"Dask at {self.address}: {error}: going on on this machine alone")
        self._client.close(timeout=5)

    def _connected(self) -> Any:
        try:
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


def _call(trainer: Trainer, name: str, call: tuple[Any, ...]) -> Any:
    return getattr(trainer, name)(*call)


def _in_short(error: Exception) -> str:
    """An error on one line."""
    return textwrap.shorten(str(error) or type(error).__name__, 160, placeholder="...")
