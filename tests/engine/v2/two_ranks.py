"""Greedy outputs of two tensor-parallel ranks on V2, without speculation and with adaspec.

With adaspec the mode changes every few steps.

    python tests/engine/v2/two_ranks.py MODELS FOLDER

A process of its own: its ranks are forked from it, with all that lets V2 run in the interpreter.
Prints one line of JSON.
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE.parent), str(HERE.parents[1] / "unit" / "policy")]
os.environ.update(VLLM_WORKER_MULTIPROC_METHOD="fork", VLLM_CPU_OMP_THREADS_BIND="0|0")

import interpreter  # noqa: E402, F401
from live_engine import ENGINE  # noqa: E402
from tiny_models import document, ids_of  # noqa: E402
from wandering import CAP, written_policy  # noqa: E402

TOKENS = 24
WORDS = ("serve", "serve", "off", "serve", "shadow")


def outputs(models, config, mode_path):
    """What both ranks together say, and how many drafted tokens were scheduled and accepted."""
    from vllm import LLM, SamplingParams

    from adaspec.vllm import mode_file
    from adaspec.vllm.plugin import register

    register()
    mode_file.PERIOD_S = 0.0
    mode_path.write_text(WORDS[0])
    llm = LLM(
        str(models / "target"),
        speculative_config=config,
        **{
            **ENGINE,
            "async_scheduling": True,
            "tensor_parallel_size": 2,
            "distributed_executor_backend": "mp",
        },
    )
    judged = []
    core = llm.llm_engine.engine_core.engine_core

    def note(_, num_draft_tokens, num_accepted_tokens, **more):
        judged.append((num_draft_tokens, num_accepted_tokens))

    core.scheduler.make_spec_decoding_stats = note
    schedule, steps = core.scheduler.schedule, [0]

    def write_and_schedule(*args):
        steps[0] += 1
        mode_path.write_text(WORDS[steps[0] // 3 % len(WORDS)])
        return schedule(*args)

    core.scheduler.schedule = write_and_schedule
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    asked = [{"prompt_token_ids": ids_of(document(900 + at, 3 + at % 3))} for at in range(6)]
    # The second time, what is said is known from the first.
    said = [llm.generate(asked, params, use_tqdm=False) for _ in range(2)]
    found = [list(one.outputs[0].token_ids) for each in said for one in each]
    llm.llm_engine.engine_core.shutdown()
    return found, [sum(column) for column in zip(*judged, strict=True)]


def main():
    models, folder = map(Path, sys.argv[1:])
    policy = written_policy(folder / "policy", memory=True)
    config = {
        "method": "adaspec",
        "model": str(models / "eagle3"),
        "policy": policy,
        "num_speculative_tokens": CAP,
        "mode_file": str(folder / "mode"),
    }
    expected, _ = outputs(models, None, folder / "mode")
    found, judged = outputs(models, config, folder / "mode")
    print(json.dumps({"same": found == expected, "scheduled_and_accepted": judged}))


if __name__ == "__main__":
    main()
