"""`adaspec profile` on the tiny models: forced plans are what the engine runs."""

import json
import os
import subprocess
import sys

import pytest
from live_server import CHECKOUT, PATIENCE_S

from adaspec.cost.load import read_cost
from adaspec.vllm.machine import hardware

ENGINE = {
    "dtype": "float32",
    "max_model_len": 256,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.4,
}


@pytest.mark.thorough
def test_an_engine_is_started_and_measured(models, tmp_path):
    words = [sys.executable, "-m", "adaspec", "profile", "--model", str(models / "target")]
    words += ["--draft", str(models / "eagle"), "-o", str(tmp_path / "cost.json"), "--json"]
    words += ["--minutes", "0.1", "--engine", json.dumps(ENGINE)]
    done = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout)
    assert document["runner"] == "V1"
    steps = document["steps"]
    assert {0, 1} < {step["forwards"] for step in steps}
    assert all(step["tokens"] >= step["rows"] and step["step_s"] > 0 for step in steps)
    cost, fit = read_cost(tmp_path / "cost.json")
    assert cost.target == str(models / "target")
    assert cost.seconds[0] > 0
    assert cost.sync.decide_s > 0
    assert fit is not None
    assert cost.hardware == hardware()
