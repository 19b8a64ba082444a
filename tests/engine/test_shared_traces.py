"""Servers that share a trace_dir do not touch each other's traces, even where one is killed."""

import time

import pytest
from live_server import PATIENCE_S, Server

from adaspec.errors import AdaspecError
from adaspec.trace.reader import TraceReader

pytestmark = pytest.mark.thorough


def rows_in(folder):
    """Rows that can be read of every logged trace in a folder, by its name."""
    found = {}
    for part in folder.glob("logged-*"):
        try:
            found[part.name] = len(list(TraceReader(part).steps()))
        except AdaspecError:  # not begun yet
            found[part.name] = 0
    return found


def await_rows(folder, traces):
    """Wait until so many traces hold rows: an engine at rest has them on disk within seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        rows = rows_in(folder)
        if len(rows) == traces and min(rows.values()) > 0:
            return rows
        time.sleep(1)
    pytest.fail(f"{traces} traces were expected, these hold rows: {rows_in(folder)}")


def kill(server):
    """End a server and all its processes at once, as a machine that runs out of memory does."""
    import psutil

    processes = psutil.Process(server.process.pid).children(recursive=True)
    for process in [server.process, *processes]:
        process.kill()
    server.process.wait()


def test_a_killed_server_and_its_neighbour_and_its_successor_write_side_by_side(
    models, truth, prompts, tmp_path
):
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())
    shared = tmp_path / "traces"
    config = {"method": "adaspec", "trace_dir": str(shared)}

    def start(name, **more):
        (tmp_path / name).mkdir()
        return Server(models, tmp_path / name, {**config, **more})

    with start("first", model=str(models / "eagle")) as first, start("second") as second:
        for server in (first, second):
            assert server.complete(prompts, 48) == expected
        before = await_rows(shared, traces=2)
        kill(first)
        assert second.complete(prompts, 48) == expected
        with start("third") as third:
            assert third.complete(prompts, 48) == expected
            after = await_rows(shared, traces=3)
        assert all(after[name] >= rows for name, rows in before.items())
    for part in shared.glob("logged-*"):
        assert {step.workload for step in TraceReader(part).steps()} == {"served"}
