"""`adaspec record` with a real engine, in a process of its own, on either model runner."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from live_server import CHECKOUT, PATIENCE_S, environment_with_entry_point

from adaspec.trace.reader import TraceReader

ENGINE = {
    "dtype": "float32",
    "max_model_len": 384,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.4,
    "num_gpu_blocks_override": 512,
}
PROGRAM = "from adaspec.cli.main import main; main()"
ON_V2 = f"import sys; sys.path[:0] = [{str(Path(__file__).parent / 'v2')!r}]; import interpreter"


@pytest.fixture
def begin(models, tmp_path):
    """Begins to record so many tokens of every prompt in a file, in a folder of this name."""

    def start(name, tokens=32, code="", head="eagle", **arguments):
        words = ["--model", models / "target", "--draft", models / head, "--k", 4, "--json"]
        words += ["--prompts", tmp_path / "prompts.jsonl", "-o", tmp_path / name]
        words += ["--max-tokens", tokens, "--engine", json.dumps(ENGINE | arguments)]
        (tmp_path / "entry").mkdir(exist_ok=True)
        # Only in this process is V2 what the code makes of it.
        environment = environment_with_entry_point(tmp_path / "entry", exist_ok=True)
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if code else "1"
        return subprocess.Popen(
            [sys.executable, "-c", f"{code}\n{PROGRAM}", "record", *map(str, words)],
            env=environment,
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


@pytest.fixture
def record(begin, tmp_path):
    """Does so to the end; what was printed, and the requests by their names."""

    def run(name, code="", **named):
        process = begin(name, code=code, **named)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err[-3000:]
        assert not code or "model runner V1" not in err
        reader = TraceReader(tmp_path / name)
        assert reader.warnings == []
        return json.loads(out), {(each.workload, each.id): each for each in reader.requests()}

    return run


def write_prompts(models, tmp_path, prompts):
    """Each as a line, every third one as a text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "target")
    with (tmp_path / "prompts.jsonl").open("w") as file:
        for at, prompt in enumerate(prompts):
            record = {"workload": "even" if at % 2 == 0 else "odd", "id": f"p/{at}"}
            record |= {"prompt_token_ids": prompt} if at % 3 else {"text": tokenizer.decode(prompt)}
            file.write(json.dumps(record) + "\n")


def test_prompts_become_a_trace_that_is_what_the_target_says(
    models, prompts, truth, tmp_path, record
):
    write_prompts(models, tmp_path, prompts)
    report, found = record("traces")
    assert (report["recorded"], report["missing"], report["refused"]) == (12, 0, [])
    manifest = TraceReader(tmp_path / "traces").manifest
    assert manifest.neural_cap == 4
    assert manifest.vocabulary_hash.startswith("128-")
    for at, (prompt, output) in enumerate(zip(prompts, truth(tokens=32), strict=True)):
        request = found["odd" if at % 2 else "even", f"p/{at}"]
        assert request.prompt_tokens.tolist() == prompt
        # It ended where the target said so.
        assert request.output_tokens.tolist() == output[: len(request.output_tokens)]


def test_the_same_is_recorded_on_v2(models, prompts, tmp_path, record):
    write_prompts(models, tmp_path, prompts[:6])
    _, on_v1 = record("v1", tokens=16, head="eagle3")
    _, on_v2 = record("v2", tokens=16, head="eagle3", code=ON_V2, async_scheduling=True)
    assert on_v1.keys() == on_v2.keys()
    for name, ours in on_v1.items():
        theirs = on_v2[name]
        np.testing.assert_array_equal(theirs.output_tokens, ours.output_tokens)
        np.testing.assert_array_equal(theirs.drafted_tokens, ours.drafted_tokens)
        # vLLM's two runners differ a little in forwards behind the first.
        for columns, close in ((slice(0, 1), 1e-5), (slice(1, 4), 0.1)):
            np.testing.assert_allclose(
                theirs.confidences[:, columns], ours.confidences[:, columns], atol=close
            )


@pytest.mark.thorough
def test_a_killed_recording_goes_on_and_records_nothing_twice(
    models, prompts, tmp_path, begin, record
):
    many = [[*prompt, at + 5] for at in range(4) for prompt in prompts]
    write_prompts(models, tmp_path, many)
    process = begin("traces", tokens=48)
    deadline = time.monotonic() + PATIENCE_S
    while not list((tmp_path / "traces").glob("part-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = TraceReader(tmp_path / "traces")
    assert before.warnings
    assert 0 < before.rows < len(many)
    report, found = record("traces", tokens=48)
    assert report["found"] == before.rows
    assert report["recorded"] == len(many) - before.rows
    assert sorted(each.prompt_tokens.tolist() for each in found.values()) == sorted(many)
