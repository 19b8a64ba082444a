import multiprocessing
import os
import signal
import stat
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from random_recordings import NEURAL_CAP, random_request, recorded
from synthetic import NEURAL_CAP as SYNTHETIC_CAP
from synthetic import request_of, synthesize, without_drafts

from adaspec.errors import TraceError
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Manifest
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


SHARD_ROWS = 3


def write_until_killed(folder, syncs, is_flushed, added):
    """Add requests, and die as the next file would reach the disk after so many that did."""
    fsync, left = os.fsync, iter(range(syncs))

    def fsync_or_die(descriptor):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = fsync_or_die
    caps = {"neural_cap": SYNTHETIC_CAP, "draft_cap": SYNTHETIC_CAP}
    caps["confidences"] = CONFIDENCES
    writer = TraceWriter(folder, Manifest(**caps), shard_rows=2048 if is_flushed else SHARD_ROWS)
    for request in synthesize(0):
        writer.add(request)
        if is_flushed:
            writer.flush()
        added.value += 1


@pytest.mark.slow
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


def any_request(rng, id):
    """A request of which much may be missing, not drafted everywhere, or of another run."""
    shows_tokens, shows_confidences, is_paired, is_copied = rng.random(4) < 0.6
    made = random_request(rng, tokens=shows_tokens, output_tokens=(1, 9))
    workload = str(rng.choice(["chat", "edits", "käse"]))
    request = recorded(made, id, workload, rng if shows_confidences else None)
    if shows_tokens:
        drafted = rng.integers(made.accepted, NEURAL_CAP + 1)
        was_not = np.arange(NEURAL_CAP) >= drafted[:, None]
        request.drafted_tokens[was_not] = -1
        request.drafted_tokens[0] = -1
        if shows_confidences:
            request.confidences[was_not] = np.nan
    if not is_paired:
        request = replace(request, output_tokens=request.output_tokens[:-1])
    if is_copied:
        copied = np.append(-1, rng.integers(0, 20, rng.integers(9))).astype(np.int16)
        request = replace(request, ngram_accepted=copied)
    return request if rng.random() < 0.8 else without_drafts(request)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(1, 6))
def test_any_sound_requests_come_back_as_they_went_in(seed, count, shard_rows):
    manifest = Manifest(neural_cap=NEURAL_CAP, draft_cap=NEURAL_CAP, confidences=CONFIDENCES)
    rng = np.random.default_rng(seed)
    sent = [any_request(rng, str(at)) for at in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        with TraceWriter(path, manifest, shard_rows=shard_rows) as writer:
            for request in sent:
                writer.add(request)
        reader = TraceReader(path)
        assert reader.warnings == []
        found = list(reader.requests())
    for one, other in zip(found, sent, strict=True):
        for field in fields(other):
            got, expected = getattr(one, field.name), getattr(other, field.name)
            np.testing.assert_array_equal(got, expected)
            assert getattr(got, "dtype", None) == getattr(expected, "dtype", None)
