import numpy as np
import pytest
from refusals import refusal
from synthetic import without_drafts

from adaspec.errors import EvaluationError
from adaspec.evaluate.selection import Wanted, select
from adaspec.trace.schema import Manifest, Request
from adaspec.trace.writer import write_trace


def request(id, length, workload="chat", counts=None):
    """A request of `length` output tokens with so many accepted counts (None: as many)."""
    known = length if counts is None else counts
    accepted = np.zeros(known, np.int16)
    accepted[:1] = -1
    output = np.arange(length, dtype=np.int32)
    return Request(workload, id, np.arange(4, dtype=np.int32), output, accepted)


@pytest.fixture
def trace_of(tmp_path):
    def write(requests, name="trace", neural_cap=5, target="a/target"):
        caps = {"drafter": "a/head", "neural_cap": neural_cap} if neural_cap else {}
        rows = requests if neural_cap else map(without_drafts, requests)
        manifest = Manifest(target=target, **caps)
        write_trace(tmp_path / name, rows, manifest=manifest)
        return tmp_path / name

    return write


def ids(selection):
    return [f"{r.workload}/{r.id}" for r in selection.requests]


def test_paired_outputs_of_16_to_2047_tokens_are_kept_by_default(trace_of):
    requests = [request(str(n), n) for n in (15, 16, 2047, 2048)]
    unpaired = {"20": 18, "21": 18, "10": 8, "3000": 18}
    requests += [request(id, int(id), counts=known) for id, known in unpaired.items()]
    mixed = trace_of([request("1", 16, "all")], "mixed")
    assert "is called 'all', as reports call" in refusal(EvaluationError, select, [mixed], Wanted())
    path = trace_of(requests)
    found = select([path], Wanted(exclude=("chat/21",)))
    assert ids(found) == ["chat/16", "chat/2047"]
    # The text of the unpaired is at hand where they would be wanted.
    assert [each.id for each in found.unpaired] == ["20"]
    assert found.left_out["chat"]["excluded"] == 1
    assert found.left_out["chat"]["unpaired"] >= 1
    assert ids(select([path], Wanted(max_output_tokens=20))) == ["chat/16"]
    assert "chat/2048" in ids(select([path], Wanted(max_output_tokens=2048)))
    bare = trace_of(requests[:2], "bare", neural_cap=None)
    found = select([bare], Wanted())
    assert (ids(found), found.neural_cap, found.drafter) == (["chat/16"], 0, None)


def test_the_smallest_neural_cap_of_several_traces_holds_and_warnings_reach_the_report(trace_of):
    paths = [trace_of([request(name, 20)], name, cap) for name, cap in (("one", 5), ("two", 3))]
    (paths[1] / "complete.json").unlink()
    found = select(paths, Wanted())
    assert found.neural_cap == 3
    assert found.sources == tuple(map(str, paths))
    assert "cut off" in found.warnings[0]


def test_traces_of_several_targets_are_not_mixed_without_a_word(trace_of):
    paths = [trace_of([request(name, 20)], name, target=f"a/{name}") for name in ("one", "two")]
    found = select(paths, Wanted())
    assert found.target == "a/one, a/two"
    assert ["several targets (a/one, a/two)" in each for each in found.warnings] == [True]
    assert select(paths[:1], Wanted()).warnings == ()


def test_nothing_left_says_why_and_what_to_do(trace_of):
    requests = [request("0", 5), request("1", 50, counts=9), request("2", 60), request("3", 40)]
    wanted = Wanted(max_output_tokens=55, exclude=("chat/3",))
    found = refusal(EvaluationError, select, [trace_of(requests)], wanted)
    for said in (
        "1 excluded",
        "exclude fewer",
        "1 shorter than 16",
        "give outputs of at least 16",
        "1 unpaired",
        "record or import",
        "1 longer than 55",
        "raise --max-output-tokens",
    ):
        assert said in found, said
