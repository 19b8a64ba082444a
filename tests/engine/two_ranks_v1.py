"""Greedy outputs of two tensor-parallel ranks on V1 while the mode changes every few steps.

    python tests/engine/two_ranks_v1.py MODELS FOLDER

A process of its own, since its ranks are. Prints one line of JSON.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
os.environ.update(VLLM_CPU_OMP_THREADS_BIND="0|0")

from live_engine import ENGINE
from tiny_models import document, ids_of

TOKENS = 48
WORDS = ("serve", "off", "serve", "shadow", "sevre", "serve")


def outputs(models, config, path):
    """What both ranks together say, and the drafted tokens that were verified, by mode."""
    from vllm import LLM, SamplingParams

    from adaspec.vllm import mode_file
    from adaspec.vllm.mode_file import ATTRIBUTE
    from adaspec.vllm.plugin import register

    register()
    mode_file.PERIOD_S = 0.0
    llm = LLM(
        str(models / "target"),
        speculative_config=config,
        **{**ENGINE, "tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    schedule, steps, verified = scheduler.schedule, [0], Counter()

    def write_and_schedule(*args):
        steps[0] += 1
        path.write_text(WORDS[steps[0] // 3 % len(WORDS)])
        output = schedule(*args)
        told = getattr(output, ATTRIBUTE, None)
        if told is not None:
            drafts = output.scheduled_spec_decode_tokens.values()
            verified[told.mode] += sum(len(tokens) for tokens in drafts)
        return output

    scheduler.schedule = write_and_schedule
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    asked = [{"prompt_token_ids": ids_of(document(900 + at, 3 + at % 3))} for at in range(6)]
    found = [list(one.outputs[0].token_ids) for one in llm.generate(asked, params, use_tqdm=False)]
    llm.llm_engine.engine_core.shutdown()
    return found, dict(verified)


def main():
    models, folder = map(Path, sys.argv[1:])
    path = folder / "mode"
    config = {
        "method": "adaspec",
        "model": str(models / "eagle3"),
        "policy": "hybrid-splice:4:20:3:2:5",
        "mode_file": str(path),
    }
    expected, _ = outputs(models, None, path)
    found, verified = outputs(models, config, path)
    print(json.dumps({"same": found == expected, "verified": verified}))


if __name__ == "__main__":
    main()
