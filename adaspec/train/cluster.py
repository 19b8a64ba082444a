"""A Dask cluster that surveys requests and replays them; where it is lost, this machine goes on."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from adaspec.errors import TrainingError

CONNECT_S = 10.0
GONE_S = 30.0
"""Seconds without workers after which the cluster is given up."""


class Cluster(AbstractContextManager["Cluster"]):
    """The workers of one scheduler, connected to until the end of a `with`."""

    def __init__(self, address: str, say: Callable[[str], None] = lambda what: None) -> None:
        """Call `say` once, if work has to be done on this machine after all."""
        self.address, self._say, self._lost = address, say, False
        self._sent: tuple[Any, Any] = None, None
        """The trainer whose methods were called last, and where it is on the workers."""
        try:
            from dask.distributed import Client

            self._client = Client(address, timeout=CONNECT_S, set_as_default=False)
            self._client.wait_for_workers(1, timeout=CONNECT_S)
        except ImportError as error:
            raise TrainingError("--dask needs Dask: pip install 'adaspec[dask]'") from error
        # Dask asserts that a thread of its own starts in time, which a busy machine can miss.
        except (OSError, ValueError, TypeError, AssertionError) as error:
            raise TrainingError(
                f"no Dask scheduler with workers answers at '{address}' ({_in_short(error)}): "
                "start `dask scheduler`, then `dask worker` with its address (tcp://HOST:8786)"
            ) from error

    def __exit__(self, *_: object) -> None:
        """Disconnect; the cluster itself keeps running."""
        self._client.close(timeout=5)

    def spread(self, method: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Call a trainer's method for many arguments, as `map` does, on the free workers."""
        calls = list(zip(*arguments, strict=True))
        if not self._lost:
            try:
                return self._called(method, calls)
            except Exception as error:
                self._lost = True
                self._say(f"Dask at {self.address}: {_in_short(error)}: going on on this machine")
        return [method(*each) for each in calls]

    def _called(self, method: Any, calls: list[tuple[Any, ...]]) -> list[Any]:
        trainer, function = method.__self__, method.__func__
        if self._sent[0] is not trainer:
            there = self._client.scatter(trainer.portable(), broadcast=True, hash=False)
            self._sent = trainer, there
        there = self._sent[1]
        futures = [self._client.submit(function, there, *call, pure=False) for call in calls]
        while not all(future.done() for future in futures):
            time.sleep(0.1)
            self._client.wait_for_workers(1, timeout=GONE_S)
        return [future.result() for future in futures]


def _in_short(error: Exception) -> str:
    return textwrap.shorten(str(error) or type(error).__name__, 160, placeholder="...")
