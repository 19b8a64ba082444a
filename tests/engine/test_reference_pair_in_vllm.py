"""The tiny reference pair in vLLM: recorded, learned from, served; its heads draft as trained."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import environment_with_entry_point

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))

from tiny_pair import ENVIRONMENT, RECIPE, pair_in, run

from adaspec.trace.reader import TraceReader

MISSING = [name for name in ("vllm", "transformers") if importlib.util.find_spec(name) is None]
if not RECIPE.is_dir():
    MISSING.append("training/, which a source distribution leaves out")

pytestmark = [
    # The pair is the one that the recipe's own tests made, where they ran before.
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]
SERVED = """
import json, sys
from vllm import LLM, SamplingParams
target, config, prompts = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
llm = LLM(model=target, dtype="float32", max_model_len=512, max_num_seqs=8, enforce_eager=True,
          gpu_memory_utilization=0.4, speculative_config=config)
wanted = SamplingParams(temperature=0.0, max_tokens=48)
for each in llm.chat(prompts, wanted, use_tqdm=False):
    print("answer:", json.dumps(list(each.outputs[0].token_ids)))
"""


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest) -> Path:
    return pair_in(request.config.cache.mkdir("pair"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    known = environment_with_entry_point(tmp_path_factory.mktemp("entry"))
    return {**ENVIRONMENT, **known, "VLLM_CPU_KVCACHE_SPACE": "1"}


def test_it_is_recorded_learned_from_and_served(pair: Path, tmp_path: Path, environment):
    work, traces, policy = tmp_path / "work", tmp_path / "traces", tmp_path / "policy"
    asked = tmp_path / "prompts"
    asked.mkdir()
    for path in (pair / "prompts").iterdir():  # two thirds of them are enough to train on
        lines = path.read_text().splitlines(keepends=True)
        (asked / path.name).write_text("".join(lines[: 2 * len(lines) // 3]))
    command = ["--target", pair / "target", "--draft", pair / "eagle3", "-o", traces]
    command += ["--work", work, "--prompts", asked, "--shortest", 8, "--name", "target"]
    command += ["--max-tokens", 64, "--engine", json.dumps({"max_model_len": 512})]
    done = run("record_traces.py", *command, **environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = list(TraceReader(traces).requests())
    assert {each.workload for each in found} == {"edits", "maths", "talks"}
    assert any(each.id.endswith("/2") for each in found if each.workload == "talks")
    assert all(each.paired and each.confidences is not None for each in found)

    words = [sys.executable, "-m", "adaspec", "train", str(traces), "-o", str(policy)]
    words += ["--concurrency", "4", "--orders", "1", "--resamples", "0"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]

    lines = (work / "prompts.jsonl").read_text().splitlines()[:6]
    prompts = json.dumps([json.loads(line)["messages"] for line in lines])

    def answers(config: object) -> list[str]:
        words = [sys.executable, "-c", SERVED, str(pair / "target"), json.dumps(config), prompts]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        return [line for line in done.stdout.splitlines() if line.startswith("answer:")]

    served = {"method": "adaspec", "model": str(pair / "eagle3"), "policy": str(policy)}
    assert answers(served) == answers(None)


@pytest.mark.thorough
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
