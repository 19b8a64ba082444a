from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from synthetic import WORKLOADS, synthesize

from adaspec.errors import TraceError
from adaspec.trace.reader import TraceReader

pytestmark = pytest.mark.slow

MOMENTS = 30
SHARD_ROWS = 3

# One process forks a writer per moment, so that imports are paid for once. A writer notes every
# row it has added in a file of its own, one byte each.
KILLER = """
import os, pathlib, random, signal, sys, time
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES
from synthetic import NEURAL_CAP, WORKLOADS, synthesize
from adaspec.trace.writer import TraceWriter

folder, moments, shard_rows, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
manifest = Manifest(
    kind="dense", neural_cap=NEURAL_CAP, draft_cap=NEURAL_CAP, confidences=CONFIDENCES
)
requests = list(synthesize(0, WORKLOADS[1:2], 300))
moment = random.Random(7)
for at in range(moments):
    child = os.fork()
    if not child:
        added = os.open(f"{folder}/{at}.added", os.O_WRONLY | os.O_CREAT)
        rows = shard_rows if how == "in place" else 1 << 17
        writer = TraceWriter(pathlib.Path(folder, str(at)), manifest, shard_rows=rows)
        for request in requests:
            writer.add(request)
            if how == "flushed":
                writer.flush()
            os.write(added, b".")
        time.sleep(60)
    # Progress, not the clock, says how far a writer gets on a busy machine.
    log, rows = f"{folder}/{at}.added", moment.randrange(24)
    while rows and not (os.path.exists(log) and os.path.getsize(log) >= rows):
        time.sleep(0.001)
    time.sleep(moment.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    ("how", "moments", "losable"), [("in place", MOMENTS, SHARD_ROWS), ("flushed", 10, 1)]
)
def test_a_killed_writer_loses_at_most_what_it_has_not_written_and_the_reader_says_so(
    tmp_path: Path, how: str, moments: int, losable: int
) -> None:
    command = [sys.executable, "-c", KILLER, str(tmp_path), str(moments), str(SHARD_ROWS), how]
    path = os.pathsep.join(sys.path)  # the child, too, imports what lies beside this file
    subprocess.run(command, check=True, timeout=600, env={**os.environ, "PYTHONPATH": path})
    expected = list(synthesize(0, WORKLOADS[1:2], 300))
    outcomes = []
    for at in range(moments):
        log = tmp_path / f"{at}.added"
        added = log.stat().st_size if log.exists() else 0
        try:
            reader = TraceReader(tmp_path / str(at))
        except TraceError as error:
            assert "there is no such folder" in str(error)
            assert added == 0
            outcomes.append(0)
            continue
        assert "cut off" in reader.warnings[0]
        found = list(reader.requests())
        assert how == "in place" or len(reader.shards) <= 1, "however often it was flushed"
        # A shard may be written before its last row is noted.
        assert -1 <= added - len(found) < losable
        for request, sent in zip(found, expected, strict=False):
            assert request.id == sent.id
            np.testing.assert_array_equal(request.drafted_tokens, sent.drafted_tokens)
        outcomes.append(len(found))
    assert len(set(outcomes)) > moments // 5, "the moments hit different stages of writing"
