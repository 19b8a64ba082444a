"""The reference pair's recipe, run as subprocesses at size tiny."""

import importlib.util
import json

import pytest
from checkout import CHECKOUT, need, run_python

RECIPE = CHECKOUT / "training" / "reference_pair"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
NEEDED = ("torch", "transformers", "tokenizers", "safetensors")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]
need("training")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair") / "pair"
    run_python(RECIPE / "make_pair.py", "--size", "tiny", "-o", folder, **ENVIRONMENT)
    return folder


@pytest.mark.parametrize("method", ["eagle3", "eagle"])
def test_a_tiny_pair_is_made_and_its_heads_draft_what_the_target_says(pair, method):
    assert (pair / method / "model.safetensors").is_file()
    config = json.loads((pair / method / "config.json").read_text())
    assert config["architectures"][0].lower().count("eagle") == 1
    lines = (pair / f"{method}-training" / "log.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    first, *_, last = (row["all"]["emitted"] for row in rows if "report_at_tokens" in row)
    assert last > max(2.0, first)
