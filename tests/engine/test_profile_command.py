"""`adaspec profile` on the tiny models: forced plans are what the engine runs."""

import json
import os
import subprocess
import sys

from live_server import CHECKOUT, PATIENCE_S

from adaspec.cost.load import read_cost
from adaspec.vllm.machine import hardware

ENGINE = {
    "dtype": "float32",
    "max_model_len": 256,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.4,
}


def test_forced_plans_are_measured_and_fitted(models, tmp_path):
    words = [sys.executable, "-m", "adaspec", "profile", "--model", str(models / "target")]
    words += ["--draft", str(models / "eagle"), "-o", str(tmp_path / "cost.json"), "--json"]
    words += ["--batches", "1,3", "--contexts", "24,48", "--neural-lens", "1,2"]
    words += ["--ngram-lens", "2", "--rounds", "2", "--engine", json.dumps(ENGINE)]
    done = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout)
    steps = document["steps"]
    sources = {step["source"] for step in steps}
    assert {"none", "keep-alive", "ngram", "ngram + drafter", "neural"} <= sources
    for step in steps:
        drafted = step["tokens"] / step["batch"] - 1
        if step["source"] == "splice":  # as long as the text gives something to copy
            assert step["neural_len"] <= drafted <= step["neural_len"] + step["ngram_len"]
        else:
            assert drafted == step["neural_len"] + step["ngram_len"]
        assert (step["forwards"] == 0) == (step["source"] in ("none", "ngram"))
        assert step["forwards"] >= step["neural_len"]
        assert 24 <= step["context_tokens"] / step["batch"] <= 256
        parts = [step[f"{part}_s"] for part in ("draft", "verify", "sample", "other")]
        assert all(part > 0 for part in parts)
        if step["source"] == "neural":
            assert step["draft_s"] > 0.02 * step["step_s"]
    cost, fit = read_cost(tmp_path / "cost.json")
    assert cost.target == str(models / "target")
    assert cost.seconds[0] > 0
    assert fit is not None
    assert cost.hardware == hardware()
