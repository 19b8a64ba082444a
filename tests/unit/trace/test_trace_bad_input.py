import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refusal
from synthetic import request_of

from adaspec.errors import TraceError
from adaspec.trace.reader import TraceReader, open_traces
from adaspec.trace.schema import check_request


def one_line_error(path):
    return refusal(TraceError, lambda: list(TraceReader(path).requests()))


def test_what_is_no_traces_folder_is_one_clear_line(tmp_path, trace):
    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.mkdir()
    other.mkdir()
    (other / "notes.txt").touch()
    assert "there is no such folder: give a folder" in one_line_error(tmp_path / "none")
    assert "holds no manifest.json" in one_line_error(empty)
    assert "holds no manifest.json" in one_line_error(other)
    assert "is a file, not a trace's folder" in one_line_error(trace / "manifest.json")
    with pytest.raises(TraceError, match="name at least one"):
        open_traces([])


def test_a_cut_shard_a_flipped_byte_and_a_shard_that_is_gone_are_noticed(trace):
    shard = trace / "part-00001.parquet"
    whole = shard.read_bytes()
    column = pq.read_metadata(shard).row_group(0).column(3)
    data = bytearray(whole)
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 0x55
    for damaged in (b"", whole[:-1], data):
        shard.write_bytes(damaged)
        assert one_line_error(trace).startswith(f"{shard}: truncated or damaged")
    shard.unlink()
    os.mkfifo(shard)
    assert one_line_error(trace).startswith(f"{shard}: is not a file: restore it")
    shard.unlink()
    assert "part-00001.parquet: is missing, though part-00002.parquet is not" in one_line_error(
        trace
    )
    shard.write_bytes(whole)
    (trace / "part-00002.parquet").unlink()
    assert "complete.json: there are 2 shards, but it says" in one_line_error(trace)
    for text in ("", "{}", '{"shards": "3"}', "[3]", "[" * 5_000):
        (trace / "complete.json").write_text(text)
        assert one_line_error(trace).startswith(f"{trace}/complete.json: ")


ACCEPTED = [None, 0, 2, 0, 0, 0, 0, 0]
DRAFTED = [None, [], [102, 103, 7], [], [], [], [], []]


def replaced(column, values, type=None):
    def change(table):
        at = table.schema.get_field_index(column)
        return table.set_column(at, column, pa.array(values, type))

    return change


def one_changed(row, at, to):
    """Three such rows, the second of which has another entry at one place."""
    return [row, [*row[:at], to, *row[at + 1 :]], row]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["margin"]), "it lacks margin (list<"),
        (replaced("prompt_tokens", [None] * 3, pa.list_(pa.int32())), "prompt_tokens is null"),
        (lambda t: t.append_column("mood", pa.array([1, 2, 3])), "none and has mood (int64)"),
        (
            replaced("workload", pa.array([b"\xff\xfe"] * 3, pa.binary()).view(pa.string())),
            ": truncated or damaged",
        ),
        (replaced("id", ["0", "0", "2"]), "request '0' of workload 'chat' is already in "),
        (
            replaced("neural_accepted", one_changed(ACCEPTED, 4, None), pa.list_(pa.int16())),
            " row 1: neural_accepted[4] is null or negative",
        ),
        (
            replaced(
                "drafted_tokens", one_changed(DRAFTED, 3, [1] * 5), pa.list_(pa.list_(pa.int32()))
            ),
            " rows 0..2: a draft of 5 tokens exceeds draft_cap=4",
        ),
    ],
)
def test_an_unsound_column_or_row_is_named_by_its_file(trace, change, message):
    shard = trace / "part-00000.parquet"
    pq.write_table(change(pq.read_table(shard)), shard)
    said = one_line_error(trace)
    assert said.startswith(str(shard))
    assert message in said


def bent(array, *at, to):
    array = array.copy()
    array[at] = to
    return array


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0 is not from 1 to"),
        ({"neural_accepted": None}, "without neural_accepted"),
        ({"neural_accepted": (1, 7)}, "accepted=7 at position 1 exceeds neural_cap=6"),
        ({"neural_accepted": (7, 2)}, "accepted=2 at position 7 reaches beyond the output's"),
        ({"neural_accepted": (2, 3)}, "accepted=3 at position 2, but its drafted tokens are"),
        ({"drafted_tokens": None}, "confidences without drafted tokens"),
        ({"drafted_tokens": np.zeros((8, 5), np.int32)}, "has shape (8, 5), expected (8, 4)"),
        ({"drafted_tokens": np.full((8, 4), 5, np.int32)}, "at position 0 is not null"),
        ({"drafted_tokens": (2, 0, -1)}, "position 2 has a negative token id or a gap"),
        ({"confidences": np.zeros((8, 4, 3), np.float32)}, "belongs to no drafted token"),
        ({"confidences": (2, 1, 0, -np.inf)}, "position 2 is infinite"),
        (
            {"neural_accepted": np.array([-1, 0, 2]), "drafted_tokens": None, "confidences": None},
            "accepted=2 at position 2",
        ),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(dense, changes, message):
    sound = request_of()
    for name, change in changes.items():
        if isinstance(change, tuple):  # a place, and what to put there
            changes = {name: bent(getattr(sound, name), *change[:-1], to=change[-1])}
    assert message in refusal(TraceError, check_request, request_of(**changes), dense, "here")
