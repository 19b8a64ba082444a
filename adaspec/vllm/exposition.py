"""Shows the engines' figures in the API server's `/metrics`."""

from __future__ import annotations

import atexit
import functools
import importlib
import logging
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from adaspec.vllm.metrics import FOLDER_VARIABLE
from adaspec.vllm.patching import wrap

log = logging.getLogger("vllm.adaspec")


@functools.cache
def expose() -> None:
    """Make this process show the figures of the engines that it will start; never raises."""
    try:
        from prometheus_client import REGISTRY

        client: Any = importlib.import_module("prometheus_client.multiprocess")
        collector = client.MultiProcessCollector(None, str(announce_folder()))
        REGISTRY.register(collector)

        # With several API servers, vLLM makes a new registry whenever it shows its figures, and
        # lets a `MultiProcessCollector` of its own fill it.
        def register_both(
            original: Any, multi_process: Any, registry: Any, *args: Any, **kwargs: Any
        ) -> None:
            original(multi_process, registry, *args, **kwargs)
            if registry is not None and registry is not REGISTRY:
                registry.register(collector)

        wrap(client.MultiProcessCollector, "__init__", register_both)
    except Exception as error:
        log.warning("adaspec: no figures of it in /metrics: %r", error)


def announce_folder() -> Path:
    """The folder of this server's counters; its first process makes one and names it to the others.

    A server is one process and those that `multiprocessing` starts for it. A program that runs
    engines and then starts a server as a command also hands its environment down. The figures of
    that server are separate, so it makes a new folder.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named and multiprocessing.parent_process() is not None:
        return Path(named)
    folder = tempfile.mkdtemp(prefix="adaspec-metrics-")
    os.environ[FOLDER_VARIABLE] = folder
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # forked children inherit the exit handlers
        shutil.rmtree(folder, ignore_errors=True)
