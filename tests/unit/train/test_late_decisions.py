"""eval/late_decisions.py: what a policy loses by each decision that comes late."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_training import OPTIONS

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.evaluate.evaluation import evaluate
from adaspec.policy.learned import load_policy

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "eval" / "late_decisions.py"


def test_its_ends_are_those_of_a_report_and_its_parts_lie_between(trace, trained, tmp_path):
    if not SCRIPT.exists():
        pytest.skip("eval/ is not here: a source distribution leaves it out")
    out = tmp_path / "parts"
    command = [sys.executable, SCRIPT, trace, "--policy", trained.folder, "--concurrency", "4"]
    subprocess.run([*map(str, command), "-o", str(out)], check=True, capture_output=True)
    document = json.loads((out / "report.json").read_text())
    assert document["command"].startswith(f"python eval/late_decisions.py {trace} --policy ")
    lifts = document["lift_over_static_fresh"]
    report = evaluate(
        trained.corpus.held_out,
        [load_policy(trained.folder)],
        H100_LLAMA_3_1_8B,
        dataclasses.replace(OPTIONS, engine="async", concurrency=(4,)),
    )
    for entry in report["headline"]:
        if entry["workload"] == "all":
            load = str(entry["concurrency"])
            whole = lifts["both, as in an async engine"][load]
            assert whole == pytest.approx(entry["lift_over_static_fresh"], abs=1e-6)
            assert all(load in lift for lift in lifts.values())
    assert len({json.dumps(lift) for lift in lifts.values()}) > 3
