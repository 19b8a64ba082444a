"""vLLM's servers as subprocesses: each is started once, and suspended while another one runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from adaspec.bench.engine.client import DIRECT, SERVED_NAME
from adaspec.bench.engine.methods import Candidate
from adaspec.bench.machine import free_memory, process_memory
from adaspec.errors import BenchError

MAX_START_S = 600.0
_MAX_STOP_S = 30.0
"""How long a server may take to end before it is killed."""
_SPARE_BYTES = 2 << 30
"""Memory that is left to everybody else."""


class Server:
    """One candidate's vLLM server; its whole process group can be suspended and go on."""

    def __init__(self, model: str, candidate: Candidate, engine: dict[str, Any], log: Path) -> None:
        self.candidate, self.log = candidate, log
        self.port = _free_port()
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        words += ["--host", "127.0.0.1", "--port", str(self.port)]
        words += ["--served-model-name", SERVED_NAME, *flags(engine)]
        if candidate.config is not None:
            words += ["--speculative-config", json.dumps(candidate.config)]
        with log.open("w") as file:
            self._process = subprocess.Popen(
                words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.warm = False
        """Whether it has answered its first, untimed requests."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def wait(self, waited: Callable[[float], None] = lambda seconds: None) -> None:
        """Return when it answers; a `BenchError` with the log's main line if it never does.

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
            raise BenchError(
                f"vLLM with {self.candidate.name} was not up after {MAX_START_S:.0f} s, and still "
                f"starting: leave it more of the machine (its log: {self.log})"
            )
        raise BenchError(
            f"vLLM does not start with {self.candidate.name}: {_main_line(self.log)} "
            f"(all of it: {self.log})"
        )

    def pause(self) -> None:
        """Suspend all its processes."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def held_bytes(self) -> float:
        """Memory of all its processes, pages that they share counted once for each."""
        return sum(process_memory(pid) for pid in _group(self._process.pid))

    def stop(self) -> None:
        """End it and all that it started."""
        self.resume()
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_MAX_STOP_S)
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_MAX_STOP_S)

    def _signal(self, which: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, which)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C, so that no server outlives its benchmark."""

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


class Servers:
    """Servers by candidate: one runs, the others wait suspended, and end where memory is short."""

    def __init__(self, start: Callable[[Candidate], Server]) -> None:
        self._start = start
        self._alive: OrderedDict[str, Server] = OrderedDict()
        self._each_bytes = 0.0
        self.short_of_memory = False
        """Whether a server had to be ended to make room for another."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._alive:
            self._alive.popitem()[1].stop()

    def running(self, candidate: Candidate) -> Server:
        """The candidate's server, running, all others suspended."""
        for name, other in self._alive.items():
            if name != candidate.name:
                other.pause()
        server = self._alive.get(candidate.name)
        if server is None:
            while self._alive and free_memory() < self._each_bytes + _SPARE_BYTES:
                self._alive.popitem(last=False)[1].stop()
                self.short_of_memory = True
            server = self._start(candidate)
            # Before it has started, so that it is ended whatever happens.
            self._alive[candidate.name] = server
            server.wait()
            self._each_bytes = max(self._each_bytes, server.held_bytes())
        self._alive.move_to_end(candidate.name)
        server.resume()
        return server

    def end(self, candidate: Candidate) -> None:
        """End one server."""
        server = self._alive.pop(candidate.name, None)
        if server is not None:
            server.stop()


def flags(engine: dict[str, Any]) -> list[str]:
    """vLLM's arguments by their Python names, as its command line takes them."""
    words = []
    for name, value in engine.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            shown = value if isinstance(value, str) else json.dumps(value)
            words += [f"--{flag}", shown]
    return words


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _main_line(log: Path) -> str:
    """The line of a log that says most: its last error, or its last line."""
    lines = []
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return " ".join((errors or lines or ["it says nothing"])[-1].split())[:600]


def _group(leader: int) -> list[int]:
    """Every process of a group, where the system shows them."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(entry.name)) == leader:
                members.append(int(entry.name))
    return members
