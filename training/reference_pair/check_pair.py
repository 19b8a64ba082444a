"""Run a head in stock vLLM on held-out prompts: is its acceptance what the training counted?

    python check_pair.py --target work/target --states work/states --head work/export/eagle3

The two agree when the head sees in the engine what it saw in training: the same states, tokens and
positions. Exit code 1 where the mean accepted differs by more than --tolerance.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from drafting import WALK
from states import States, StatesError


def run_engine(target: Path, head: Path, method: str, work: list[tuple[list[int], int]]) -> Any:
    """Drafts, accepted tokens and accepted per position that vLLM counts over (prompt, length)s."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    from vllm import LLM, SamplingParams, TokensPrompt

    engine = LLM(
        model=str(target),
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=16,
        distributed_executor_backend="uni",
        gpu_memory_utilization=0.4,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config={"method": method, "model": str(head), "num_speculative_tokens": WALK},
    )
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt, _ in work]
    wanted = [SamplingParams(temperature=0.0, max_tokens=length) for _, length in work]
    outputs = engine.generate(prompts, wanted, use_tqdm=False)
    found: dict[str, Any] = {"tokens": sum(len(out.outputs[0].token_ids) for out in outputs)}
    for metric in engine.get_metrics():
        name = metric.name.removeprefix("vllm:spec_decode_num_")
        if name in ("drafts", "accepted_tokens"):
            found[name] = metric.value
        elif name == "accepted_tokens_per_pos":
            found[name] = metric.values
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--states", type=Path, required=True)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tolerance", type=float, default=0.05, help="relative, of mean emitted")
    arguments = parser.parse_args()
    try:
        states = States(arguments.states)
    except StatesError as error:
        print(f"check_pair: {error}", file=sys.stderr)
        return 2
    work = []
    for item in states.held_out()[: arguments.sequences]:
        tokens = states.column(item.shard, "tokens")[item.start : item.start + item.length]
        work.append((tokens[: item.prompt].tolist(), item.length - item.prompt + 1))
    if not work:
        print(
            f"check_pair: {arguments.states}: no held-out sequence yet: read more", file=sys.stderr
        )
        return 2
    command = [sys.executable, str(Path(__file__).with_name("train_heads.py"))]
    command += ["--evaluate", str(arguments.head), "--target", str(arguments.target)]
    command += ["--states", str(arguments.states), "-o", str(arguments.states)]
    # As the engine computes: at size tiny, bfloat16 alone costs the heads 0.05 of 3.7 tokens.
    command += ["--held-out", str(arguments.sequences), "--dtype", "float32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return done.returncode
    expected = json.loads(done.stdout)["all"]
    config = json.loads((arguments.head / "config.json").read_text())
    method = "eagle3" if config["architectures"][0].endswith("Eagle3") else "eagle"
    found = run_engine(arguments.target, arguments.head, method, work)
    drafts = found["drafts"]
    emitted = 1 + found["accepted_tokens"] / drafts
    row = {
        "method": method,
        "drafts": drafts,
        "engine_emitted": round(emitted, 4),
        "expected_emitted": expected["walk"],
        "engine_by_position": [round(n / drafts, 4) for n in found["accepted_tokens_per_pos"]],
        "expected_by_position": expected["walk_by_position"],
    }
    print(json.dumps(row))
    return int(abs(emitted / expected["walk"] - 1) > arguments.tolerance)


if __name__ == "__main__":
    sys.exit(main())
