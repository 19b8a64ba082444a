"""eval/gpu/rounds.py: methods take turns, rounds fit the time, and an engine fails alone."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "eval" / "gpu"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs eval/, which a source distribution leaves out"
)
SERVED = """
import json, os, sys, time
settings = json.loads(open(sys.argv[1]).read())
name = os.path.basename(sys.argv[1]).removesuffix(".json")
def say(document):
    print(json.dumps(document), flush=True)
if name == "adaspec":
    {begins}
outputs = {{each: [5, 7] for each in settings["workloads"]}}
say({{"ready": {{"hardware": "none"}}, "outputs": outputs}})
for count, line in enumerate(sys.stdin):
    asked = json.loads(line)
    with open({said!r}, "a") as said:
        said.write(json.dumps([name, asked]) + chr(10))
    if name == "adaspec" and count == {dies}:
        os._exit(7)
    say({{"cell": {{"tokens_per_s": {rate}, "count": count}}}})
"""


@pytest.fixture(autouse=True)
def path(monkeypatch):
    pytest.importorskip("torch", reason="an engine's stages need torch")
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Measures with engines that measure nothing; the cells by key, and what engines were told."""
    import rounds

    (tmp_path / "served").mkdir()
    monkeypatch.setattr(rounds, "HERE", tmp_path / "served")

    def run(*words, code=0, begins="pass", dies=-1, rate=1e6):
        said = tmp_path / "said"
        text = SERVED.format(begins=begins, said=str(said), dies=dies, rate=rate)
        (tmp_path / "served" / "served.py").write_text(text)
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        monkeypatch.setattr(sys, "argv", ["rounds", "--out", str(out), "--dry-run", *words])
        assert rounds.main() == code
        lines = [json.loads(line) for line in (out / "rounds-A.jsonl").read_text().splitlines()]
        told = [json.loads(line) for line in said.read_text().splitlines()]
        return {line["key"]: line["cell"] for line in lines[1:]}, told

    return run


def test_every_method_is_warmed_up_and_then_measured_in_rounds_that_another_one_begins(measure):
    cells, told = measure("--rounds", "3")
    assert len(told) == 4 * 2 * 3
    turns = [[name for name, _ in told[at : at + 3]] for at in range(0, 24, 6)]
    assert {tuple(sorted(each)) for each in turns} == {("adaspec", "eagle3-3", "none")}
    assert [each[0] for each in turns] == ["none", "eagle3-3", "adaspec", "none"]
    assert [asked["load"] for _, asked in told[:6]] == [1] * 3 + [2] * 3
    # Each round has the same requests; what is run for warmth does not count.
    assert [asked["seed"] for _, asked in told] == [0] * 6 + [1] * 18
    counted = [cell for cell in cells.values() if cell.get("round")]
    assert len(counted) == 18
    assert cells["rounds"] == {"begun": 3, "of": 3}


def test_a_round_that_would_not_fit_is_not_begun_and_one_that_is_done_is_not_done_again(measure):
    cells, told = measure("--rounds", "2", "--max-s", "60", rate=0.01)
    assert cells["rounds"] == {"begun": 0, "of": 2}
    assert sum("load" in cell for cell in cells.values()) == len(told) == 6
    cells, told = measure("--rounds", "2", "--max-s", "60")
    assert cells["rounds"] == {"begun": 2, "of": 2}
    assert len(told) == 6 + 18  # engines that start anew are warmed up anew
    assert measure("--rounds", "2") == (cells, told)


@pytest.mark.parametrize(
    ("how", "left", "said"),
    [
        ({"begins": 'say({"error": "no memory"}); sys.exit(1)'}, 0, "no memory"),
        ({"dies": 3}, 3, "exit code 7"),
    ],
    ids=["does not start", "dies"],
)
def test_an_engine_that_fails_leaves_the_others(measure, how, left, said):
    cells, _ = measure("--rounds", "2", code=1, **how)
    methods = [cell["method"] for cell in cells.values() if "load" in cell]
    assert [methods.count(name) for name in ("none", "eagle3-3", "adaspec")] == [6, 6, left]
    errors = [cell["error"] for cell in cells.values() if "error" in cell]
    assert len(errors) == 1
    assert said in errors[0]


def test_a_ramp_ends_one_by_one_and_all_requests_come_as_often():
    from workload import draw

    outputs = [100 + at for at in range(30)]
    order = draw(outputs, 32, 1, 16, 4)
    assert len(order.ramp) == 32
    assert all(1 <= tokens <= outputs[at] for at, tokens in order.ramp)
    assert len({tokens for _, tokens in order.ramp}) > 16
    assert len(order.counted) == 128
    whole = [*(at for at, _ in order.ramp), *order.counted]
    counts = np.bincount(whole, minlength=30)
    assert counts.max() - counts.min() <= 1
    assert len(draw(outputs, 1, 1, 16, 4).counted) == 16
    assert draw(outputs, 32, 1, 16, 4) == order != draw(outputs, 32, 2, 16, 4)


def test_counts_are_forced_as_so_many_right_tokens_and_then_a_wrong_one():
    from forced import COUNTED, drafts_of

    from adaspec.trace.schema import Request

    output = np.arange(10, 16, dtype=np.int32)
    accepted = np.array([-1, 3, 0, 9, 1, 0], np.int16)
    request = Request("a", "1", np.arange(3, dtype=np.int32), output, accepted)
    drafts = drafts_of(request)
    assert drafts.shape == (6, COUNTED)
    for position in range(1, 6):
        left = output[position:].tolist()
        right = [a == b for a, b in zip(drafts[position], left, strict=False)]
        count = min(int(accepted[position]), len(left))
        assert right == [True] * count + [False] * (len(left) - count)
        assert (drafts[position, len(left) :] == -1).all()
        assert (drafts[position, : len(left)] >= 0).all()
