import stat

import pyarrow.parquet as pq
import pytest
from msgspec import structs
from sound_rows import request_of

from adaspec.errors import TraceError
from adaspec.trace.reader import TraceReader
from adaspec.trace.writer import TraceWriter, write_trace


def test_an_output_as_long_as_its_limit_was_cut_off(tmp_path, dense):
    limited = [request_of(str(limit), max_tokens=limit) for limit in (7, 8, 9, None)]
    manifest = structs.replace(dense, sampling={"max_tokens": 8})
    write_trace(tmp_path / "t", limited, manifest=manifest)
    cut_off = [request.is_cut_off for request in TraceReader(tmp_path / "t").requests()]
    # Where a request does not say its limit, the recording's own holds.
    assert cut_off == [True, True, False, True]
    assert not request_of().is_cut_off


def test_entry_0_is_a_null_for_any_parquet_tool_that_their_owner_has(trace):
    row = pq.read_table(trace / "part-00000.parquet").to_pylist()[0]
    assert row["neural_accepted"][:3] == [None, 0, 2]
    assert row["drafted_tokens"][:3] == [None, [], [102, 103, 7]]
    assert row["logprob"][2] == pytest.approx([-0.1, -0.5, -2.0])
    assert stat.S_IMODE(trace.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in trace.iterdir()} == {0o600}


def test_flushing_changes_no_byte(tmp_path, dense):
    for name in ("flushed", "once"):
        with TraceWriter(tmp_path / name, dense, shard_rows=15) as writer:
            for number in range(40):
                writer.add(request_of(str(number)))
                if name == "flushed":
                    writer.flush()
                    assert TraceReader(tmp_path / name).rows == number + 1
    reader = TraceReader(tmp_path / "flushed")
    assert [int(request.id) for request in reader.requests()] == [*range(40)]
    assert len(reader.shards) == 3
    for file in (tmp_path / "once").iterdir():
        assert (tmp_path / "flushed" / file.name).read_bytes() == file.read_bytes()


def test_a_cut_off_recording_can_be_continued_by_its_like(tmp_path, dense):
    path = tmp_path / "t"
    with pytest.raises(RuntimeError), TraceWriter(path, dense, shard_rows=1) as writer:
        writer.add(request_of("0"))
        raise RuntimeError
    (path / ".part-00001.parquet.unfinished").write_bytes(b"half")
    with pytest.raises(TraceError, match="target is 'a/target' there and 'another' here"):
        TraceWriter(path, structs.replace(dense, target="another"))
    with TraceWriter(path, dense) as writer:
        with pytest.raises(TraceError, match="id '0' occurs twice in workload 'chat'"):
            writer.add(request_of("0"))
        writer.add(request_of("1"))
    reader = TraceReader(path)
    assert reader.warnings == []
    assert [request.id for request in reader.requests()] == ["0", "1"]
    assert len(list(path.iterdir())) == 4


def test_two_writers_cannot_write_to_one_trace(trace, dense):
    with TraceWriter(trace, dense), pytest.raises(TraceError, match="another process is writing"):
        TraceWriter(trace, dense)
