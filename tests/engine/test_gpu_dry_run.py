"""eval/gpu on a CPU: what it measures runs on tiny models, and its results are what they say."""

import json
import sys

import pytest
from checkout import CHECKOUT, need, run

need("eval")
FOLDER = CHECKOUT / "eval" / "gpu"
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def measured(tmp_path_factory, request):
    """What comes back of the call that measures, as on a machine with a GPU."""
    out, kit = tmp_path_factory.mktemp("out"), request.config.cache.mkdir("engine") / "gpu"
    kept = {"OUT": str(out), "KIT": str(kit), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    run("bash", FOLDER / "short_run.sh", "measure", "--dry-run", "--rounds", "1", **kept)
    return out


def lines_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def cells_in(folder, stage):
    return [line for line in lines_of(folder) if line.get("stage") == stage]


def test_every_method_is_warmed_up_and_then_measured_in_a_round_that_another_one_begins(measured):
    cells = cells_in(measured, "round")
    turns = [[cell["method"] for cell in cells[at : at + 6]] for at in range(0, 24, 6)]
    warm = ["none", "eagle3-1", "eagle3-2", "eagle3-3", "ngram", "adaspec"]
    counted = [*warm[1:], warm[0]]
    assert turns == [warm, warm, counted, counted]
    assert [cell["load"] for cell in cells] == ([1] * 6 + [2] * 6) * 2
    assert [cell["round"] for cell in cells] == [0] * 12 + [1] * 12


def test_engines_side_by_side_measure_every_method_and_what_comes_back_is_small(measured):
    names = sorted(path.name for path in measured.rglob("*") if path.is_file())
    assert names == ["lossless.json", "lossless.log", "rounds.jsonl", "rounds.log"]
    assert json.loads((measured / "lossless.json").read_text())["problems"] == []
    for cell in cells_in(measured, "round"):
        assert cell["faults"] == {}
        steps = cell["steps"]
        assert len({len(column) for column in steps.values()}) == 1
        assert sum(steps["emitted"]) == cell["tokens"]
        rows = zip(*(steps[name] for name in ("tokens", "rows", "prompt", "drafted")), strict=True)
        assert all(tokens == sum(parts) for tokens, *parts in rows)
        ran = {"none": {0}, "ngram": {0}, "adaspec": {0, 1, 2, 3}}
        ran |= {f"eagle3-{length}": {length} for length in (1, 2, 3)}
        assert set(steps["forwards"]) <= ran[cell["method"]]


def test_behind_the_rounds_come_profiles_rejected_drafts_and_bounded_steps(measured):
    engines = ["none", "eagle3-3", "ngram", "adaspec"]
    profiles = cells_in(measured, "profile")
    assert [cell["method"] for cell in profiles] == engines * 2
    assert all(cell["profile"]["wall_us"] > 0 for cell in profiles)
    rejected = cells_in(measured, "rejected")
    assert [cell["method"] for cell in rejected] == ["none", "adaspec"] * 2
    # Of each row and step that emits something there is one token.
    assert all(cell["tokens_per_row"] == 1 for cell in rejected)
    assert sum(sum(cell["steps"]["drafted"]) for cell in rejected) > 0
    assert [cell["bound_ms"] > 0 for cell in cells_in(measured, "bounded")] == [True] * 2


def test_forced_acceptance_is_that_of_the_recordings(measured, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from workload import draw, recorded

    requests = recorded(lines_of(measured)[0]["plan"]["requests"])
    (cell,) = (
        each
        for each in cells_in(measured, "round")
        if (each["method"], each["load"], each["round"]) == ("eagle3-3", 1, 1)
    )
    lengths = [len(each.output_tokens) for each in requests]
    expected = []
    for at in draw(lengths, 1, 1, cell["counted"]).counted:
        request, position = requests[at], 1
        expected.append(1)
        while position < len(request.output_tokens):
            accepted = min(int(request.neural_accepted[position]), 3)
            expected.append(min(accepted + 1, len(request.output_tokens) - position))
            position += accepted + 1
    assert [each for each in cell["steps"]["emitted"] if each] == expected


def test_a_report_and_a_replay_are_made_of_what_comes_back(measured):
    run(sys.executable, FOLDER / "replay.py", measured)
    report = json.loads((measured / "report.json").read_text())
    assert report["priced_by"] == "measured at start"
    assert [line["load"] for line in report["headline"]] == [1, 2]
    assert len(report["replay"]) == 12
