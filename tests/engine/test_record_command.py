import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkout import CHECKOUT, run_python
from live_engine import ENGINE
from live_server import PATIENCE_S, own_environment, wait_until

from adaspec.cost.load import read_cost
from adaspec.trace.reader import TraceReader
from adaspec.vllm.configuration import hardware

PROGRAM = "from adaspec.cli.main import main; main()"
V2 = Path(__file__).parent / "v2"
ON_V2 = f"import sys; sys.path[:0] = [{str(V2)!r}]; import interpreter; {PROGRAM}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture(scope="module")
def begin(models, folder):
    """Begins to record so many tokens of some prompts, in a folder of this name."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "target")

    def start(name, prompts, tokens=16, program=PROGRAM, **arguments):
        with (folder / f"{name}.jsonl").open("w") as file:
            for at, prompt in enumerate(prompts):
                line = {"workload": "odd" if at % 2 else "even", "id": f"p/{at}"}
                as_text = {"text": tokenizer.decode(prompt)}
                line |= {"prompt_token_ids": prompt} if at % 3 else as_text
                file.write(json.dumps(line) + "\n")
        words = ["--model", models / "target", "--draft", models / "eagle3", "--k", 3, "--json"]
        words += ["--prompts", folder / f"{name}.jsonl", "-o", folder / name]
        words += ["--max-tokens", tokens, "--engine", json.dumps(ENGINE | arguments)]
        # Only in this process is V2 what the program makes of it.
        apart = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(program == PROGRAM))}
        return subprocess.Popen(
            [sys.executable, "-c", program, "record", *map(str, words)],
            env=own_environment() | apart,
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


@pytest.fixture(scope="module")
def record(begin, folder):
    """Does so to the end; what was printed, and the requests by their ids."""

    def run(name, *asked, **named):
        process = begin(name, *asked, **named)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err[-3000:]
        assert name != "v2" or "model runner V1" not in err
        reader = TraceReader(folder / name)
        assert reader.warnings == []
        return json.loads(out), {each.id: each for each in reader.requests()}

    return run


@pytest.fixture(scope="module")
def on_v1(record, prompts):
    return record("v1", prompts[:6])


def test_prompts_become_a_trace_that_is_what_the_target_says(on_v1, prompts, truth, folder):
    report, found = on_v1
    assert (report["recorded"], report["missing"], report["refused"]) == (6, 0, [])
    manifest = TraceReader(folder / "v1").manifest
    assert manifest.neural_cap == 3
    assert manifest.vocabulary_hash.startswith("128-")
    for at, (prompt, output) in enumerate(zip(prompts[:6], truth(16)[:6], strict=True)):
        request = found[f"p/{at}"]
        assert request.workload == ("odd" if at % 2 else "even")
        assert request.prompt_tokens.tolist() == prompt
        # It ended where the target said so.
        assert request.output_tokens.tolist() == output[: len(request.output_tokens)]


@pytest.mark.thorough
def test_the_same_is_recorded_on_v2(on_v1, prompts, record):
    _, on_v2 = record("v2", prompts[:6], program=ON_V2, async_scheduling=True)
    assert on_v1[1].keys() == on_v2.keys()
    for name, ours in on_v1[1].items():
        theirs = on_v2[name]
        np.testing.assert_array_equal(theirs.output_tokens, ours.output_tokens)
        np.testing.assert_array_equal(theirs.drafted_tokens, ours.drafted_tokens)
        # vLLM's two runners differ a little in forwards behind the first.
        for columns, close in ((slice(0, 1), 1e-5), (slice(1, 3), 0.1)):
            np.testing.assert_allclose(
                theirs.confidences[:, columns], ours.confidences[:, columns], atol=close
            )


@pytest.mark.thorough
def test_a_killed_recording_goes_on_and_records_nothing_twice(prompts, folder, begin, record):
    many = [[*prompt, at + 5] for at in range(4) for prompt in prompts]
    process = begin("killed", many, tokens=48)
    wait_until(lambda: list((folder / "killed").glob("part-*")))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = TraceReader(folder / "killed")
    assert before.warnings
    assert 0 < before.rows < len(many)
    report, found = record("killed", many, tokens=48)
    assert report["found"] == before.rows
    assert report["recorded"] == len(many) - before.rows
    assert sorted(each.prompt_tokens.tolist() for each in found.values()) == sorted(many)


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
