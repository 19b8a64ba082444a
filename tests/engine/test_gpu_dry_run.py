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
    words = ["measure", "--dry-run", "--rounds", "1", "--groups", "A"]
    run("bash", FOLDER / "short_run.sh", *words, **kept)
    return out


def cells_in(path):
    cells = [json.loads(line)["cell"] for line in path.read_text().splitlines()[1:]]
    return [cell for cell in cells if "load" in cell]


def test_every_step_of_every_method_adds_up(measured):
    for cell in cells_in(measured / "rounds-A.jsonl"):
        assert cell["faults"] == {}
        steps = cell["steps"]
        assert sum(steps["emitted"]) == cell["tokens"]
        rows = zip(*(steps[name] for name in ("tokens", "rows", "prompt", "drafted")), strict=True)
        assert all(tokens == sum(parts) for tokens, *parts in rows)
        ran = {"none": {0}, "eagle3-3": {3}, "adaspec": {0, 1, 2, 3}}[cell["method"]]
        assert set(steps["forwards"]) <= ran


def test_forced_acceptance_is_that_of_the_recordings(measured, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from workload import draw, recorded

    head = json.loads((measured / "rounds-A.jsonl").read_text().splitlines()[0])
    requests = recorded(head["settings"]["plan"]["workloads"]["llama"])
    (cell,) = (
        each
        for each in cells_in(measured / "rounds-A.jsonl")
        if (each["method"], each["load"], each["round"]) == ("eagle3-3", 1, 1)
    )
    lengths = [len(each.output_tokens) for each in requests]
    expected = []
    for at in draw(lengths, 1, cell["seed"], cell["least"], cell["passes"]).counted:
        request, position = requests[at], 1
        expected.append(1)
        while position < len(request.output_tokens):
            accepted = min(int(request.neural_accepted[position]), 3)
            expected.append(min(accepted + 1, len(request.output_tokens) - position))
            position += accepted + 1
    assert [each for each in cell["steps"]["emitted"] if each] == expected
