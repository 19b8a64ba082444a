"""Which requests an evaluation keeps, and what it says of the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaspec.errors import EvaluationError
from adaspec.evaluate.selection import Wanted, select
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import Request
from adaspec.trace.writer import TraceWriter


def request(id, length, workload="chat", counts=None):
    """A request of `length` output tokens with so many accepted counts (None: as many)."""
    known = length if counts is None else counts
    accepted = np.zeros(known, np.int16)
    accepted[:1] = -1
    output = np.arange(length, dtype=np.int32)
    return Request(workload, id, np.arange(4, dtype=np.int32), output, accepted, None, None, None)


@pytest.fixture
def trace_of(tmp_path):
    def write(requests, name="trace", neural_cap=5):
        manifest = Manifest(kind="dense", target="a/target", synthetic=True)
        if neural_cap:
            manifest = replace(manifest, drafter="a/head", neural_cap=neural_cap)
        else:
            requests = [replace(r, neural_accepted=None) for r in requests]
        with TraceWriter(tmp_path / name, manifest) as writer:
            for each in requests:
                writer.add(each)
        return tmp_path / name

    return write


def ids(selection):
    return [f"{r.workload}/{r.id}" for r in selection.requests]


def test_outputs_of_16_to_2047_tokens_are_kept_by_default(trace_of):
    path = trace_of([request(str(n), n) for n in (15, 16, 2047, 2048)])
    found = select([path], Wanted())
    assert ids(found) == ["chat/16", "chat/2047"]
    assert found.left_out == {"chat": {"longer than 2047": 1, "shorter than 16": 1}}


def test_the_limit_can_be_moved_or_lifted(trace_of):
    path = trace_of([request(str(n), n) for n in (20, 30, 4000)])
    assert ids(select([path], Wanted(max_output_tokens=20))) == ["chat/20"]
    assert len(select([path], Wanted(max_output_tokens=None)).requests) == 3


def test_unpaired_requests_are_left_out_and_counted(trace_of):
    path = trace_of([request("0", 20), request("1", 20, counts=18)])
    found = select([path], Wanted())
    assert ids(found) == ["chat/0"]
    assert found.left_out == {"chat": {"unpaired": 1}}
    assert [each.id for each in found.unpaired] == ["1"]


def test_the_text_of_unpaired_requests_is_at_hand_where_they_would_be_wanted(trace_of):
    counts = {"20": 18, "21": 18, "10": 8, "3000": 18}
    path = trace_of([request("0", 20), *(request(n, int(n), counts=k) for n, k in counts.items())])
    found = select([path], Wanted(exclude=("chat/21",)))
    assert ids(found) == ["chat/0"]
    assert [each.id for each in found.unpaired] == ["20"]


def test_without_a_neural_drafter_nothing_is_unpaired(trace_of):
    found = select([trace_of([request("0", 20)], neural_cap=None)], Wanted())
    assert ids(found) == ["chat/0"]
    assert found.neural_cap == 0
    assert found.drafter is None


def test_the_protocol_takes_everything_but_what_is_excluded_by_name(trace_of):
    path = trace_of([request("0", 3), request("1", 20, counts=18), request("2", 4000)])
    found = select([path], Wanted(filtered=False, exclude=("chat/2",)))
    assert ids(found) == ["chat/0", "chat/1"]
    assert found.left_out == {"chat": {"excluded": 1}}


def test_a_workload_can_be_had_alone_and_others_are_not_counted_as_left_out(trace_of):
    path = trace_of([request("0", 20), request("0", 20, "code"), request("1", 5, "code")])
    found = select([path], Wanted(workload="chat"))
    assert ids(found) == ["chat/0"]
    assert found.left_out == {}
    assert found.counts == {"chat": 1}


def test_the_smallest_neural_cap_of_several_traces_holds_for_all(trace_of):
    paths = [
        trace_of([request("0", 20)], "one", 5),
        trace_of([request("1", 20)], "two", 3),
    ]
    found = select(paths, Wanted())
    assert found.neural_cap == 3
    assert found.sources == tuple(map(str, paths))
    assert found.synthetic


def test_a_reader_s_warnings_reach_the_report(trace_of):
    path = trace_of([request("0", 20)])
    (path / "complete.json").unlink()
    assert "cut off" in select([path], Wanted()).warnings[0]


@pytest.mark.parametrize(
    ("requests", "wanted", "said"),
    [
        ([request("0", 5)], Wanted(), r"1 shorter than 16\): give outputs of at least 16"),
        ([request("0", 50)], Wanted(max_output_tokens=40), r"longer than 40\): raise --max"),
        ([request("0", 50)], Wanted(exclude=("chat/0",)), r"1 excluded\): exclude fewer"),
        ([request("0", 50, counts=9)], Wanted(), r"1 unpaired\): record or import"),
    ],
)
def test_nothing_left_says_why_and_what_to_do(trace_of, requests, wanted, said):
    with pytest.raises(EvaluationError, match=said):
        select([trace_of(requests)], wanted)
