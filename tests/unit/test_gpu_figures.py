"""eval/gpu: what is made of measured runs, and when two outputs count as different."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "eval" / "gpu"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs eval/, which a source distribution leaves out"
)


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])


def ran(method, number, speed, load=8, forced=True, outputs=()):
    from figures import NUMBERS

    facts = {"method": method, "round": number, "load": load, "forced": forced, "runner": "V2"}
    graphs = {"target": {"FULL": 2, "NONE": 1}}
    return {
        "part": "throughput",
        **facts,
        **dict.fromkeys(NUMBERS, 1),
        "tokens_per_s": speed,
        "outputs": [list(each) for each in outputs],
        "graphs": graphs,
    }


def test_a_row_is_the_median_of_its_rounds_and_keeps_each():
    from figures import price_of_forcing, rows

    one, other = ((0, "a"), (1, "b"), (2, "c")), ((0, "a"), (1, "x"), (7, "c"))
    runs = [ran("none", at, speed, outputs=one) for at, speed in enumerate((10.0, 20.0, 40.0))]
    runs += [
        ran("eagle3-2", at, speed, outputs=other) for at, speed in enumerate((30.0, 20.0, 100.0))
    ]
    runs += [ran("none", 0, 999.0, forced=False)]
    eagle, none = rows(iter(runs))
    assert (none["tokens_per_s"], none["speedup"]) == (20.0, 1.0)
    assert (eagle["tokens_per_s"], eagle["speedup"]) == (30.0, 1.5)
    assert eagle["speedup_by_round"] == [3.0, 1.0, 2.5]
    assert eagle["graphs"] == {"target": {"FULL": 6, "NONE": 3}}
    assert eagle["outputs_as_none"] == 0.5
    runs = [ran("none", 0, 90.0), ran("none", 0, 99.0, forced=False), ran("none", 0, 5.0, load=1)]
    assert price_of_forcing(runs) == {"8": pytest.approx(1.1)}
    (alone,) = rows(iter([ran("eagle3-2", 0, 30.0)]))
    assert (alone["speedup"], alone["speedup_by_round"]) == (None, [])
    assert alone["outputs_as_none"] is None


def test_only_nearly_tied_tokens_may_differ():
    pytest.importorskip("torch", reason="an engine's stages need torch")
    from lossless import compared

    likely = [{1: -0.1, 2: -3.0}, {5: -0.7, 6: -0.7001}, {3: -0.1}]
    expected = [([1, 5, 3], likely)] * 4
    found = [([1, 5, 3], []), ([1, 6, 9], []), ([2, 5, 3], []), ([1, 5], [])]
    result = compared(expected, found, 1e-3)
    assert (result["equal"], result["near_tie"], result["different"]) == (1, 1, 2)
    assert [each["place"] for each in result["differences"]] == [0, 2]


def test_a_check_that_saw_nothing_is_no_success():
    pytest.importorskip("torch", reason="an engine's stages need torch")
    from lossless import verdict

    taken = {"ngram": 3, "neural": 3, "splice": 3}
    good = {"seed": 1, "equal": 9, "near_tie": 0, "different": 0, "taken": taken, "faults": {}}
    assert verdict([good])["problems"] == []
    assert verdict([good, {"faults": {"plan": 3}}])["problems"] == []
    for bad in (
        [good, {"faults": {}}],
        [good | {"different": 1}],
        [good | {"faults": {"plan": 1}}],
        [good | {"taken": taken | {"splice": 0}}],
    ):
        assert len(verdict(bad)["problems"]) == 1
