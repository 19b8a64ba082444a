import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from synthetic import synthesize

from adaspec.errors import TraceError
from adaspec.trace.reader import TraceReader

pytestmark = pytest.mark.slow

SHARD_ROWS = 3
KILLED = """
import os, signal, sys
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES
from adaspec.trace.writer import TraceWriter
from synthetic import NEURAL_CAP, synthesize

fsync, left = os.fsync, int(sys.argv[2])

def fsync_or_die(descriptor):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = fsync_or_die
caps = {"neural_cap": NEURAL_CAP, "draft_cap": NEURAL_CAP, "confidences": CONFIDENCES}
flushed = sys.argv[3] == "flushed"
rows = 2048 if flushed else int(sys.argv[4])
writer = TraceWriter(sys.argv[1], Manifest(**caps), shard_rows=rows)
for request in synthesize(0):
    writer.add(request)
    if flushed:
        writer.flush()
    print(".", end="", flush=True)
"""


@pytest.mark.parametrize(("how", "losable"), [("in place", SHARD_ROWS), ("flushed", 1)])
def test_a_killed_writer_loses_at_most_what_it_has_not_written_and_the_reader_says_so(
    tmp_path, how, losable
):
    path = os.pathsep.join(sys.path)  # the child, too, imports what lies beside this file
    for moment in range(4):
        folder = tmp_path / str(moment)
        words = map(str, (KILLED, folder, moment, how, SHARD_ROWS))
        done = subprocess.run(
            [sys.executable, "-c", *words],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
        )
        assert done.returncode == -signal.SIGKILL
        if moment == 0:  # its manifest was not yet in place
            with pytest.raises(TraceError, match=r"holds no manifest\.json"):
                TraceReader(folder)
            continue
        reader = TraceReader(folder)
        assert "cut off" in reader.warnings[0]
        found = list(reader.requests())
        assert len(found) == losable * (moment - 1)
        assert 0 <= len(done.stdout) - len(found) < losable
        assert how == "in place" or len(reader.shards) <= 1, "however often it was flushed"
        for request, sent in zip(found, synthesize(0), strict=False):
            assert request.id == sent.id
            np.testing.assert_array_equal(request.drafted_tokens, sent.drafted_tokens)
