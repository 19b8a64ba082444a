"""The tiny reference pair in stock vLLM: its heads load and draft there as they did in training."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "training" / "reference_pair"
MISSING = [name for name in ("vllm", "transformers") if importlib.util.find_spec(name) is None]
if not RECIPE.is_dir():
    MISSING.append("training/, which a source distribution leaves out")

pytestmark = [
    # Making the pair takes five minutes of one core and more; its recipe's own tests do it as well.
    pytest.mark.thorough,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]


def run(script: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(RECIPE / script), *map(str, arguments)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    done = run("make_pair.py", "--size", "tiny", "-o", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("method", ["eagle3", "eagle"])
def test_drafts_are_accepted_as_often_as_the_training_counted(pair: Path, method: str):
    done = run(
        "check_pair.py",
        *("--target", pair / "target", "--states", pair / "states", "--head", pair / method),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    row = json.loads(done.stdout.strip().splitlines()[-1])
    assert row["method"] == method
    assert row["engine_emitted"] > 1.5
