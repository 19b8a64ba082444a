"""Greedy outputs of two tensor-parallel ranks while the mode changes every few steps.

    python tests/engine/two_ranks.py V1|V2 MODELS FOLDER

A process of its own, since its ranks are; those of V2 are forked from it, with all that lets V2 run
in the interpreter. Prints one line of JSON.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE / "v2"), str(HERE.parent / "unit" / "policy")]
os.environ.update(VLLM_CPU_OMP_THREADS_BIND="0|0")
RUNNER = sys.argv[1]
if RUNNER == "V2":
    os.environ.update(VLLM_WORKER_MULTIPROC_METHOD="fork")
    import interpreter  # noqa: F401

from live_engine import ENGINE  # noqa: E402
from tiny_models import document, ids_of  # noqa: E402
from wandering import CAP, written_policy  # noqa: E402

TOKENS = 32
WORDS = ("serve", "off", "serve", "shadow", "sevre", "serve")
IN_RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


def outputs(models, config, path):
    """What both ranks together say, and the drafted tokens that were verified, by mode."""
    from vllm import LLM, SamplingParams

    from adaspec.vllm import mode_file
    from adaspec.vllm.mode_file import ATTRIBUTE
    from adaspec.vllm.plugin import register

    register()
    mode_file.PERIOD_S = 0.0
    arguments = {**ENGINE, **IN_RANKS, "async_scheduling": RUNNER == "V2"}
    llm = LLM(str(models / "target"), speculative_config=config, **arguments)
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
    # The second time, what is said is known from the first.
    said = [llm.generate(asked, params, use_tqdm=False) for _ in range(2)]
    llm.llm_engine.engine_core.shutdown()
    return [list(one.outputs[0].token_ids) for each in said for one in each], dict(verified)


def main():
    models, folder = map(Path, sys.argv[2:])
    path = folder / "mode"
    config = {"method": "adaspec", "model": str(models / "eagle3"), "mode_file": str(path)}
    config |= {
        "policy": written_policy(folder / "policy", memory=True),
        "num_speculative_tokens": CAP,
    }
    path.write_text(WORDS[0])
    expected, _ = outputs(models, None, path)
    found, verified = outputs(models, config, path)
    print(json.dumps({"same": found == expected, "verified": verified}))


if __name__ == "__main__":
    main()
