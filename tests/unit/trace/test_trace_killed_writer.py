import multiprocessing
import os
import signal

import numpy as np
import pytest
from synthetic import NEURAL_CAP, synthesize

from adaspec.errors import TraceError
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Manifest
from adaspec.trace.writer import TraceWriter

pytestmark = pytest.mark.slow

SHARD_ROWS = 3


def write_until_killed(folder, syncs, is_flushed, added):
    """Add requests, and die as the next file would reach the disk after so many that did."""
    fsync, left = os.fsync, iter(range(syncs))

    def fsync_or_die(descriptor):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = fsync_or_die
    caps = {"neural_cap": NEURAL_CAP, "draft_cap": NEURAL_CAP, "confidences": CONFIDENCES}
    writer = TraceWriter(folder, Manifest(**caps), shard_rows=2048 if is_flushed else SHARD_ROWS)
    for request in synthesize(0):
        writer.add(request)
        if is_flushed:
            writer.flush()
        added.value += 1


@pytest.mark.parametrize(("how", "losable"), [("in place", SHARD_ROWS), ("flushed", 1)])
def test_a_killed_writer_loses_at_most_what_it_has_not_written_and_the_reader_says_so(
    tmp_path, how, losable
):
    context = multiprocessing.get_context("spawn")
    for moment in range(4):
        folder, added = tmp_path / str(moment), context.Value("i", 0)
        words = (folder, moment, how == "flushed", added)
        writer = context.Process(target=write_until_killed, args=words)
        writer.start()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        if moment == 0:  # its manifest was not yet in place
            with pytest.raises(TraceError, match=r"holds no manifest\.json"):
                TraceReader(folder)
            continue
        reader = TraceReader(folder)
        assert "cut off" in reader.warnings[0]
        found = list(reader.requests())
        assert len(found) == losable * (moment - 1)
        assert 0 <= added.value - len(found) < losable
        assert how == "in place" or len(reader.shards) <= 1, "however often it was flushed"
        for request, sent in zip(found, synthesize(0), strict=False):
            assert request.id == sent.id
            np.testing.assert_array_equal(request.drafted_tokens, sent.drafted_tokens)
