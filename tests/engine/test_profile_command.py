import json

import pytest
from checkout import run_python
from live_engine import ENGINE
from live_server import PATIENCE_S

from adaspec.cost.load import read_cost
from adaspec.vllm.configuration import hardware


@pytest.mark.thorough
def test_an_engine_is_started_and_measured(models, tmp_path):
    words = ["-m", "adaspec", "profile", "--model", models / "target", "--draft", models / "eagle"]
    words += ["-o", tmp_path / "cost.json", "--json"]
    words += ["--minutes", "0.1", "--engine", json.dumps(ENGINE)]
    done = run_python(*words, timeout=PATIENCE_S)
    document = json.loads(done.stdout)
    assert document["runner"] == "V1"
    steps = document["steps"]
    assert {0, 1} < {step["forwards"] for step in steps}
    assert all(step["tokens"] >= step["rows"] and step["step_s"] > 0 for step in steps)
    cost, fit = read_cost(tmp_path / "cost.json")
    assert cost.target == str(models / "target")
    assert cost.seconds[0] > 0
    assert cost.decide_s > 0
    assert fit is not None
    assert cost.hardware == hardware()
