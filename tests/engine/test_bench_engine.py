"""`adaspec bench engine` on the tiny models: real servers, stopped and woken in turn."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_server import PATIENCE_S, environment_with_entry_point

from adaspec.bench.engine.run import ROUNDS

ENGINE = {
    "dtype": "float32",
    "max_model_len": 384,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.4,
}


def command(models, tmp_path, prompts, *more):
    for name, part in (("tables", prompts[:6]), ("lines", prompts[6:])):
        lines = [
            json.dumps({"workload": name, "id": at, "prompt_token_ids": each})
            for at, each in enumerate(part)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    words = [sys.executable, "-m", "adaspec", "bench", "engine", "--json"]
    words += ["--model", str(models / "target"), "--draft", str(models / "eagle")]
    words += ["--prompts", str(tmp_path / "tables.jsonl")]
    words += ["--prompts", str(tmp_path / "lines.jsonl"), "-o", str(tmp_path / "bench")]
    words += ["--methods", "none,adaspec", "--policy", "hybrid-splice:4:20:2:2:5"]
    words += ["--rounds", "2", "--requests", "4", "--max-tokens", "24"]
    return [*words, "--engine", json.dumps(ENGINE), "--concurrency", "2", *more]


def environment(tmp_path):
    folder = tmp_path / "entry"
    folder.mkdir()
    return environment_with_entry_point(folder)


@pytest.mark.thorough
def test_servers_take_turns_and_say_the_same_and_a_killed_run_goes_on_with_more(
    models, tmp_path, prompts
):
    words, known = command(models, tmp_path, prompts), environment(tmp_path)
    rounds = tmp_path / "bench" / ROUNDS
    fewer = [*words, "--rounds", "1"]
    first = subprocess.Popen(fewer, env=known, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < deadline and first.poll() is None:
        if rounds.exists() and len(rounds.read_text().splitlines()) > 2:
            break
        time.sleep(0.2)
    first.send_signal(signal.SIGTERM)
    said = first.communicate(timeout=PATIENCE_S)[1].decode()
    assert first.returncode == 143, said[-2000:]
    kept = rounds.read_text().splitlines()
    assert len(kept) > 2
    assert not _servers(tmp_path)
    done = subprocess.run(words, env=known, capture_output=True, text=True, timeout=3 * PATIENCE_S)
    assert done.returncode == 0, done.stderr[-2000:]
    assert rounds.read_text().splitlines()[: len(kept)] == kept
    report = json.loads(done.stdout)
    assert report["outputs_equal"]
    cells = {(row["workload"], row["method"]) for row in report["rows"]}
    assert cells == {
        (workload, method)
        for workload in ("all", "tables", "lines")
        for method in ("none", "adaspec")
    }
    for row in report["rows"]:
        assert row["rounds"] == 2
        assert row["tokens_per_s"] > 0
        assert row["ttft_s"]["median"] > 0
        assert row["inter_token_s"]["p95"] >= row["inter_token_s"]["median"] > 0
        drafts = row["method"] == "adaspec"
        assert (row["acceptance"] is not None) == (row["drafted_per_step"] > 0) == drafts
        assert row["accepted_per_step"] > 0 or not drafts
    assert (tmp_path / "bench" / "speedup.png").exists()
    assert not _servers(tmp_path)


def _servers(tmp_path):
    """Processes that speak of this test's folder: servers that outlived their benchmark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = str(tmp_path / "entry").encode() in (entry / "environ").read_bytes()
        except OSError:
            continue
        if mine and int(entry.name) != os.getpid():
            found.append(entry.name)
    return found
