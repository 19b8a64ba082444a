"""eval/prompts_of_trace.py: what a benchmark asks, from what was recorded."""

import json
import subprocess
import sys
from pathlib import Path

from synthetic import write_synthetic

from adaspec.trace.reader import TraceReader
from adaspec.vllm.prompts import read_prompts

SCRIPT = Path(__file__).resolve().parents[2] / "eval" / "prompts_of_trace.py"


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_request_becomes_the_prompt_that_it_had(tmp_path):
    write_synthetic(tmp_path / "trace", 0, requests_per_workload=3)
    out = tmp_path / "prompts.jsonl"
    ran = run(tmp_path / "trace", "-o", out)
    assert ran.returncode == 0, ran.stderr
    recorded = list(TraceReader(tmp_path / "trace").requests())
    assert f"{len(recorded)} prompts" in ran.stdout
    assert [prompt.key for prompt in read_prompts(out)] == [(r.workload, r.id) for r in recorded]
    # A folder cannot be written to.
    ran = run(tmp_path / "trace", "-o", tmp_path)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["prompt_token_ids"] for each in lines] == [
        r.prompt_tokens.tolist() for r in recorded
    ]
