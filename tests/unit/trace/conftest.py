import pytest
from synthetic import request_of

from adaspec.trace.schema import CONFIDENCES, Manifest
from adaspec.trace.writer import TraceWriter


@pytest.fixture
def dense():
    return Manifest(
        target="a/target", drafter="a/head", neural_cap=6, draft_cap=4, confidences=CONFIDENCES
    )


@pytest.fixture
def trace(tmp_path, dense):
    """A finished trace of 7 requests in 3 shards."""
    path = tmp_path / "trace"
    with TraceWriter(path, dense, shard_rows=3) as writer:
        for number in range(7):
            writer.add(request_of(str(number)))
    return path
