"""A vLLM server as a process of its own: started, waited for, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VLLM = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
"""What the command `vllm` runs, from the environment of this process."""
SERVED_NAME = "served"
"""The name by which every server calls its model."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""For servers of this machine: urlopen would go through a proxy that the environment names."""
MAX_START_S = 600.0
MAX_STOP_S = 30.0


class ServerError(Exception):
    """A server did not start, or what was asked of it failed."""


class Server:
    """A `vllm serve` process; `speculative` is its speculative config, None for no speculation."""

    def __init__(
        self, model: str, engine: dict[str, Any], speculative: dict[str, Any] | None, log: Path
    ) -> None:
        self.log = log
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
        self.address = f"http://127.0.0.1:{port}"
        self.command = [*VLLM, "serve", model, "--host", "127.0.0.1", "--port", str(port)]
        self.command += ["--served-model-name", SERVED_NAME, *flags(engine)]
        if speculative is not None:
            self.command += ["--speculative-config", json.dumps(speculative)]
        with log.open("w") as file:
            self._process = subprocess.Popen(
                self.command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, waited: Callable[[float], None] = lambda seconds: None) -> None:
        """Return when it answers; a `ServerError` with its log's main line if it never does.

        `waited` is called now and then with the seconds so far.
        """
        began = time.monotonic()
        while self._process.poll() is None and time.monotonic() < began + MAX_START_S:
            with contextlib.suppress(OSError):
                DIRECT.open(f"{self.address}/health", timeout=5).close()
                return
            waited(time.monotonic() - began)
            time.sleep(0.5)
        if self._process.poll() is None:
            raise ServerError(f"vLLM was not up after {MAX_START_S:.0f} s (its log: {self.log})")
        raise ServerError(f"vLLM does not start: {main_line(self.log)} (all of it: {self.log})")

    def stop(self) -> None:
        """End it and all that it started."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(MAX_STOP_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(MAX_STOP_S)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C, so that no server outlives who started it."""

    def leave(which: int, _: object) -> None:
        raise SystemExit(128 + which)

    # A signal that is ignored stays so: a command run by nohup is meant to outlive the terminal.
    handlers = {
        which: signal.signal(which, leave)
        for which in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(which) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for which, handler in handlers.items():
            signal.signal(which, handler)


def flags(engine: dict[str, Any]) -> list[str]:
    """vLLM's arguments by their Python names, as its command line takes them."""
    words = []
    for name, value in engine.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
    return words


def main_line(log: Path) -> str:
    """The line of a log that says most: its last error, or its last line."""
    lines = []
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return " ".join((errors or lines or ["it says nothing"])[-1].split())[:600]
