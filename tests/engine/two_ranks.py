"""Greedy outputs of two tensor-parallel ranks while the mode changes every few steps.

    python tests/engine/two_ranks.py V1|V2 MODELS FOLDER

A process of its own, since its ranks are: each of them imports this file, and with it all that lets
V2 run in the interpreter. Prints one line of JSON.
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
    import interpreter  # noqa: F401

from live_engine import ENGINE  # noqa: E402
from tiny_models import document, ids_of  # noqa: E402
from wandering import CAP, written_policy  # noqa: E402

from adaspec.vllm.patching import shield_llvmlite  # noqa: E402

shield_llvmlite()  # which ranks without adaspec have imported, too

TOKENS = 32
WORDS = ("serve", "off", "serve", "sevre", "serve")
IN_RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


def watch_rank():
    """Have this rank note what it decides, and measure other times if it is the second."""
    import torch

    from adaspec.vllm import measuring
    from adaspec.vllm.session.decider import BatchDecider

    own = measuring.Marks.seconds
    measuring.noted = {"times": [], "decided": []}

    def differing(marks):
        times = [each * (1 + 4 * torch.distributed.get_rank()) for each in own(marks)]
        measuring.noted["times"] += times
        return times

    def noting(decide, of):
        def decide_and_note(*args):
            decided = decide(*args)
            measuring.noted["decided"].append(of(decided))
            return decided

        return decide_and_note

    measuring.Marks.seconds = differing
    BatchDecider.budget = noting(BatchDecider.budget, int)
    BatchDecider.decide = noting(
        BatchDecider.decide, lambda decided: (decided.forwards, decided.settings.tolist())
    )


def noted(worker):
    """What a rank has noted, and the costs that it decides by."""
    from adaspec.cost.load import cost_document
    from adaspec.vllm import measuring

    runner = worker.model_runner
    serves = vars(runner).get("adaspec_session")
    if serves is None:
        return None
    return {"costs": cost_document(serves.serving.setup.cost), **measuring.noted}


def outputs(models, config, path):
    """What both ranks together say, the drafted tokens that were verified, by mode, and what each
    rank has noted."""
    from vllm import LLM, SamplingParams

    from adaspec.vllm import measuring
    from adaspec.vllm import scheduler as our_scheduler
    from adaspec.vllm.plugin import register

    register()
    our_scheduler.PERIOD_S = 0.0
    measuring.MOST_S = 600.0  # two ranks share a processor
    arguments = {**ENGINE, **IN_RANKS, "async_scheduling": RUNNER == "V2"}
    llm = LLM(str(models / "target"), speculative_config=config, **arguments)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    schedule, steps, verified = scheduler.schedule, [0], Counter()

    def write_and_schedule(*args):
        steps[0] += 1
        path.write_text(WORDS[steps[0] // 3 % len(WORDS)])
        output = schedule(*args)
        told = getattr(output, our_scheduler.MODE_ATTRIBUTE, None)
        if told is not None:
            drafts = output.scheduled_spec_decode_tokens.values()
            verified[told.mode] += sum(len(tokens) for tokens in drafts)
        return output

    scheduler.schedule = write_and_schedule
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    asked = [{"prompt_token_ids": ids_of(document(900 + at, 3 + at % 3))} for at in range(6)]
    # The second time, what is said is known from the first.
    said = [llm.generate(asked, params, use_tqdm=False) for _ in range(2)]
    ranks = llm.collective_rpc(noted)
    llm.llm_engine.engine_core.shutdown()
    return [list(one.outputs[0].token_ids) for each in said for one in each], dict(verified), ranks


def main():
    models, folder = map(Path, sys.argv[2:])
    path = folder / "mode"
    config = {"method": "adaspec", "model": str(models / "eagle3"), "mode_file": str(path)}
    config |= {
        "policy": written_policy(folder / "policy"),
        "num_speculative_tokens": CAP,
        "ring_tokens": 4096,
    }
    path.write_text(WORDS[0])
    expected, _, _ = outputs(models, None, path)
    found, verified, (first, second) = outputs(models, config, path)
    same = {
        "outputs": found == expected,
        "times": first["times"] == second["times"],
        "costs": first["costs"] == second["costs"],
        "decided": first["decided"] == second["decided"],
    }
    cost, decided = first["costs"]["name"], len(first["decided"])
    print(json.dumps({"same": same, "cost": cost, "decided": decided, "verified": verified}))


if __name__ == "__mp_main__":
    watch_rank()
if __name__ == "__main__":
    main()
