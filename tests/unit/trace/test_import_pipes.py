"""A recording comes through a pipe where one is named; no other pipe is waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adaspec.errors import TraceError
from adaspec.trace.importers.formats import import_trace
from adaspec.trace.reader import TraceReader

LINES = [
    {"prompt_tokens": [1], "output_tokens": [2, 3], "neural_accepted": [None, 1]},
    {"prompt_tokens": [4], "output_tokens": [5]},
]
TEXT = "".join(json.dumps(line) + "\n" for line in LINES)


@pytest.fixture
def pipe_of(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """A named pipe through which a text comes once."""
    writers = []

    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        os.mkfifo(path)
        writers.append(threading.Thread(target=path.write_text, args=(text,), daemon=True))
        writers[-1].start()
        return path

    yield make
    for writer in writers:
        writer.join(timeout=60)


def test_json_lines_from_a_pipe_are_read_for_their_caps_and_again(
    tmp_path: Path, pipe_of: Callable[[str, str], Path]
) -> None:
    found = import_trace("jsonl", [pipe_of("chat.jsonl", TEXT)], tmp_path / "t")
    assert (found["requests"], found["workloads"]) == (2, {"chat": 2})
    assert TraceReader(tmp_path / "t").manifest.neural_cap == 1


def test_standard_input_is_imported_under_its_name(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    for source in ("/dev/stdin", "/dev/fd/0"):
        command = [sys.executable, "-m", "adaspec", "import", "jsonl", source, "--force", "--json"]
        done = subprocess.run(
            [*command, "-o", str(tmp_path / "t")],
            input=TEXT,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(root)},
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["workloads"] == {"stdin": 2}


def test_no_other_pipe_and_no_device_is_waited_for(tmp_path: Path, trace: Path) -> None:
    os.mkfifo(tmp_path / "chat.jsonl")
    with pytest.raises(TraceError, match=r"chat\.jsonl: is not a file: move it away"):
        import_trace("jsonl", tmp_path, tmp_path / "t")
    with pytest.raises(TraceError, match="/dev/zero: is a device, neither a file nor a pipe"):
        import_trace("jsonl", "/dev/zero", tmp_path / "t")
    with pytest.raises(TraceError, match="is a pipe or device, not a trace's folder"):
        TraceReader(tmp_path / "chat.jsonl")
    for name in ("part-00001.parquet", "complete.json", "manifest.json"):
        (trace / name).rename(tmp_path / name)
        os.mkfifo(trace / name)
        with pytest.raises(TraceError, match=f"{name}: is not a file: restore it"):
            TraceReader(trace)
        (tmp_path / name).replace(trace / name)
