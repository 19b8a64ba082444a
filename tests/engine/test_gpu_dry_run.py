"""eval/gpu on a CPU: every stage runs on tiny models, and its results are what they say."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from live_server import CHECKOUT

FOLDER = CHECKOUT / "eval" / "gpu"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs eval/, which this checkout lacks"),
]


def run(out, cache, *words):
    command = [sys.executable, str(FOLDER / "run.py"), "--dry-run", "--out", str(out)]
    return subprocess.run(
        [*command, "--cache", str(cache), *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def cache(request):
    return request.config.cache.mkdir("engine")


@pytest.mark.thorough
def test_one_part_runs_by_itself_and_is_not_done_again(tmp_path, cache, models):
    for again in (False, True):
        done = run(tmp_path, cache, "--stages", "pair")
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        assert ("..." in done.stdout) != again
    rows = json.loads((tmp_path / "report.json").read_text())["pair"]
    assert {row["method"] for row in rows} == {"none", "adaspec-v1", "adaspec-v2"}
    assert {row["outputs_as_none"] for row in rows if row["outputs_as_none"] is not None} == {1}


@pytest.fixture(scope="module")
def out(tmp_path_factory, cache, models):
    """What a dry run from nothing writes."""
    folder = tmp_path_factory.mktemp("gpu") / "out"
    done = run(folder, cache)
    logs = "\n".join(path.read_text()[-3000:] for path in folder.glob("logs/*.log"))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:] + logs
    return folder


@pytest.mark.thorough
def test_every_stage_is_done_and_its_results_are_what_they_say(out):
    from adaspec.cost.load import read_cost

    report = json.loads((out / "report.json").read_text())
    skipped = {"lossless-v2-no-sync": "CUDA"}
    if find_spec("arctic_inference") is None:
        skipped["throughput-1-suffix"] = "arctic-inference"
    found = {each["stage"]: each for each in report["stages"]}
    assert {name for name, each in found.items() if each["status"] == "skipped"} == set(skipped)
    assert all(word in found[name]["why"] for name, word in skipped.items())
    assert {each["status"] for name, each in found.items() if name not in skipped} == {"done"}
    assert {each["stage"] for each in report["lossless"]} == {"lossless-v2", "lossless-v1"}
    for each in report["lossless"]:
        assert each["different"] == 0
        assert each["equal"] >= 8
        assert min(each["taken"].values()) > 0
    for way in ("v1", "v2"):
        cost, fit = read_cost(out / "costs" / f"{way}.json")
        assert fit is not None
        assert cost.fixed_s + cost.per_token_s > 0
        kinds = {(each["tokens"], each["forwards"]) for each in report["costs"][way]["steps"]}
        # Without drafts, with so many tokens verified, and with one forward and with two.
        assert {(2, 0), (6, 0), (2, 1), (4, 1), (6, 2)} <= kinds
    ours = {"adaspec-v1", "adaspec-v2"}
    others = {"none", "eagle3-2", "ngram-gpu", "adaptive"}
    for part, expected in (("throughput", others | ours), ("pair", {"none"} | ours)):
        rows = report[part]
        assert expected <= {row["method"] for row in rows}
        assert {row["load"] for row in rows} == {1, 2}
        assert {row["outputs_as_none"] for row in rows} <= {1, None}
        assert all(row["tokens_per_s"] > 0 and row["rounds"] == 1 for row in rows)
    assert all(set(each["over"]) == ours for each in report["headline"])
    assert "<h3>The price of deciding on V2" in (out / "report.html").read_text()


@pytest.mark.thorough
def test_forced_acceptance_is_that_of_the_recordings(out):
    sys.path.insert(0, str(FOLDER))
    from throughput import asked_for, draw

    report = json.loads((out / "report.json").read_text())
    plan = json.loads((out / "plan.json").read_text())["stages"]
    settings = plan["throughput-1-eagle3-2"]["settings"]
    requests = asked_for(settings, out)
    order = draw(len(requests), 1, settings["seed"], settings["most_requests"])
    expected = 0
    for request in (requests[at].recorded for at in order):
        position = 1
        while position < len(request.output_tokens):
            expected += 1
            position += min(int(request.neural_accepted[position]), 2) + 1
    (row,) = (
        row for row in report["throughput"] if (row["load"], row["method"]) == (1, "eagle3-2")
    )
    assert row["verifications"] == expected
    assert row["drafted"] == 2 * expected
