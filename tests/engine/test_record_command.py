"""`adaspec record` with a real engine, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from live_server import CHECKOUT, PATIENCE_S, environment_with_entry_point

from adaspec.trace.reader import TraceReader

ENGINE = {
    "dtype": "float32",
    "max_model_len": 384,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.4,
}


def command(models, tmp_path, *more, tokens=32):
    words = [sys.executable, "-m", "adaspec", "record", "--model", str(models / "target")]
    words += ["--draft", str(models / "eagle"), "--prompts", str(tmp_path / "prompts.jsonl")]
    words += ["-o", str(tmp_path / "traces"), "--max-tokens", str(tokens), "--k", "4", "--json"]
    return [*words, "--engine", json.dumps(ENGINE), *more]


def environment(tmp_path, processes="1"):
    folder = tmp_path / "entry"
    folder.mkdir(exist_ok=True)
    made = environment_with_entry_point(folder, exist_ok=True)
    return {**made, "VLLM_ENABLE_V1_MULTIPROCESSING": processes, "PYTHONPATH": made["PYTHONPATH"]}


def write_prompts(tmp_path, prompts, text_of):
    with (tmp_path / "prompts.jsonl").open("w") as file:
        for at, prompt in enumerate(prompts):
            record = {"workload": "even" if at % 2 == 0 else "odd", "id": f"p/{at}"}
            record |= {"prompt_token_ids": prompt} if at % 3 else {"text": text_of(prompt)}
            file.write(json.dumps(record) + "\n")


def text_of(models):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "target")
    return lambda prompt: tokenizer.decode(prompt)


def run(models, tmp_path, *more, processes="1", **named):
    ran = subprocess.run(
        command(models, tmp_path, *more, **named),
        env=environment(tmp_path, processes),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


def test_prompts_become_a_trace_that_is_what_the_target_says(models, prompts, truth, tmp_path):
    expected = truth(tokens=32)
    write_prompts(tmp_path, prompts, text_of(models))
    report = run(models, tmp_path)
    assert (report["recorded"], report["missing"], report["refused"]) == (12, 0, [])
    reader = TraceReader(tmp_path / "traces")
    assert reader.warnings == []
    assert reader.manifest.neural_cap == 4
    assert reader.manifest.vocabulary_hash.startswith("128-")
    found = {(each.workload, each.id): each for each in reader.requests()}
    for at, prompt in enumerate(prompts):
        request = found["odd" if at % 2 else "even", f"p/{at}"]
        assert request.prompt_tokens.tolist() == prompt
        length = len(request.output_tokens)  # ended where the target said so
        assert request.output_tokens.tolist() == expected[at][:length]


@pytest.mark.thorough
def test_a_killed_recording_goes_on_and_records_nothing_twice(models, prompts, tmp_path):
    many = [[*prompt, at + 5] for at in range(4) for prompt in prompts]
    write_prompts(tmp_path, many, text_of(models))
    process = subprocess.Popen(
        command(models, tmp_path, tokens=48),
        env=environment(tmp_path, "0"),
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not list((tmp_path / "traces").glob("part-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = TraceReader(tmp_path / "traces")
    assert before.warnings
    assert 0 < before.rows < len(many)
    report = run(models, tmp_path, processes="0", tokens=48)
    assert report["found"] == before.rows
    assert report["recorded"] == len(many) - before.rows
    reader = TraceReader(tmp_path / "traces")
    assert reader.warnings == []
    assert sorted(each.prompt_tokens.tolist() for each in reader.requests()) == sorted(many)
