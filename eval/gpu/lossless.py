"""Whether greedy outputs are those of no speculation, whatever is drafted and however long.

    python eval/gpu/lossless.py lossless.json
    VLLM_GPU_SYNC_CHECK=error python eval/gpu/lossless.py no-sync.json  # any wait fails

Policies that decide at random mix every source and length in one batch, on tiny models. It exits
with 1 where an output differs, and says what it found in the file.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import workload
from engines import (
    ENGINE_TESTS,
    Skip,
    graphs_counted,
    has_gpu,
    model_runner,
    opened,
    prepare_process,
    tiny_models,
)
from results import write_json

from adaspec.cost.load import DEFAULT

SOURCES = ("ngram", "neural", "splice")
CAP = 12
NOISE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""By how much (in log-probability) the arithmetic of a type may move two tokens against each other
when other requests share the step: some twenty units in the last place of a logit about 20."""
EXACT = "TRITON_ATTN"
"""The attention backend in vLLM's wheel that computes in float32."""
POLICY = "general"
LEAST_SEEDS = 2
LIKELY = 5
"""So many of a step's likeliest tokens are known where an output differs."""
Output = tuple[list[int], list[Mapping[int, float]]]
"""An output's tokens, and the log-probabilities of the likeliest ones at each place."""


def check(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Compare the outputs of random policies with those of no speculation; what is found so far."""
    no_sync = os.environ.get("VLLM_GPU_SYNC_CHECK") == "error"
    if no_sync and not has_gpu():
        raise Skip("torch tells waits for CUDA devices alone, and this machine has none")
    models = tiny_models(Path(settings["cache"]))
    target, head = str(models / "target"), str(models / "eagle3")
    prompts, tokens = prompts_of(settings), settings["output_tokens"]
    engine = settings["engine"]
    with opened(target, None, engine) as llm:
        expected = outputs_of(llm, prompts, tokens, logprobs=True)
    config = {
        "method": "adaspec",
        "model": head,
        "draft_method": "eagle3",
        "policy": settings["policy"],
        "cost": DEFAULT,
        "guard": False,
        "num_speculative_tokens": CAP,
    }
    cells = []
    with graphs_counted() as counted, opened(target, config, engine) as llm:
        if no_sync:
            check_that_waiting_is_seen()
            cells.append({"faults": faults_of_a_wait(llm, prompts)})
        began_s = time.monotonic()
        for seed in itertools.count(1):
            if seed > LEAST_SEEDS and time.monotonic() - began_s > settings["seconds"]:
                break
            wanderer = wanderer_of(llm, seed)
            cell = compared(expected, outputs_of(llm, prompts, tokens), NOISE[engine["dtype"]])
            cell |= {"taken": taken(wanderer), "faults": faults(llm)}
            cells.append({"seed": seed, "requests": len(prompts), **cell})
            yield verdict(cells) | {"graphs": counted}


def prompts_of(settings: dict[str, Any]) -> list[list[int]]:
    """Prompts of many lengths."""
    draw = np.random.default_rng(5)
    prompts = workload.prompts_of(settings)
    return [prompt[: int(draw.integers(12, len(prompt) + 1))] for prompt in prompts]


def outputs_of(
    llm: Any, prompts: Sequence[list[int]], tokens: int, logprobs: bool = False
) -> list[Output]:
    """The greedy output of every prompt."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        logprobs=LIKELY if logprobs else None,
    )
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = []
    for each in llm.generate(asked, params, use_tqdm=False):
        steps = each.outputs[0].logprobs or []
        likely = [{token: one.logprob for token, one in step.items()} for step in steps]
        outputs.append((list(each.outputs[0].token_ids), likely))
    return outputs


def first_difference(expected: Sequence[int], output: Sequence[int]) -> int | None:
    """The first position at which two outputs differ; None where they are the same."""
    pairs = enumerate(zip_longest(expected, output))
    return next((position for position, (one, other) in pairs if one != other), None)


def compared(expected: Sequence[Output], found: Sequence[Output], noise: float) -> dict[str, Any]:
    """How many outputs are equal, differ where two tokens were nearly tied, or are different."""
    counts, different = Counter[str](), []
    for request, ((wanted, likely), (output, _)) in enumerate(zip(expected, found, strict=True)):
        place = first_difference(wanted, output)
        if place is None:
            counts["equal"] += 1
            continue
        one, other = (tokens[place] if place < len(tokens) else None for tokens in (wanted, output))
        margin = None
        if one in likely[place] and other in likely[place]:
            margin = max(likely[place].values()) - likely[place][other]
        near_tie = margin is not None and margin <= noise
        counts["near_tie" if near_tie else "different"] += 1
        if not near_tie:
            different.append({"request": request, "place": place, "margin": margin})
    names = ("equal", "near_tie", "different")
    return {**{name: counts[name] for name in names}, "differences": different}


def wanderer_of(llm: Any, seed: int) -> Any:
    """Have an engine decide at random from here on."""
    from functools import partial
    from types import SimpleNamespace

    sys.path += [str(ENGINE_TESTS), str(ENGINE_TESTS.parent / "unit" / "vllm")]
    from wandering import Wanderer, serve_by

    return Wanderer(SimpleNamespace(put=partial(serve_by, model_runner(llm))), seed)


def taken(wanderer: Any) -> dict[str, int]:
    """How often each source was verified."""
    return {source: int(wanderer.taken[source]) for source in SOURCES}


def faults(llm: Any) -> dict[str, int]:
    """The faults that adaspec lived with since the last policy was put in."""
    return dict(model_runner(llm).adaspec_session.breaker.counts)


def check_that_waiting_is_seen() -> None:
    """Raise `Skip` where vLLM does not look for waits."""
    try:
        from vllm.utils import gpu_sync_debug as debug
    except ImportError as error:
        raise Skip("this vLLM does not look for waits for the device") from error
    if debug._SYNC_CHECK_MODE != "error" or not debug._sync_check_enabled:
        raise Skip("VLLM_GPU_SYNC_CHECK=error has not switched vLLM's check on")


def faults_of_a_wait(llm: Any, prompts: Sequence[list[int]]) -> dict[str, int]:
    """The faults of a policy that does wait: none would mean that the check sees nothing."""
    import torch

    wanderer = wanderer_of(llm, 0)
    decide = wanderer.decider.decide

    def wait(*facts: Any) -> Any:
        torch.ones(1, device=model_runner(llm).device).item()
        return decide(*facts)

    wanderer.decider.decide = wait
    outputs_of(llm, prompts[:2], 8)
    return faults(llm)


def verdict(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all cells come to; raises where an output differs or a source was never taken."""
    runs = [cell for cell in cells if "seed" in cell]
    waits = [cell["faults"] for cell in cells if "seed" not in cell]
    totals = {name: sum(run[name] for run in runs) for name in ("equal", "near_tie", "different")}
    sources = {name: sum(run["taken"][name] for run in runs) for name in SOURCES}
    found = Counter[str]()
    for run in runs:
        found.update(run["faults"])
    problems = [f"{totals['different']} outputs differ"] if totals["different"] else []
    problems += [f"{name} was never verified" for name, count in sources.items() if not count]
    problems += [f"adaspec counted faults: {dict(found)}"] if found else []
    problems += ["a wait for the device was not seen"] if waits and not waits[0].get("plan") else []
    return {**totals, "taken": sources, "faults": dict(found), "problems": problems}


def settings_of(cache: Path) -> dict[str, Any]:
    """What is asked of which engine; on a CPU less, since V2 runs in an interpreter there."""
    engine: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 384}
    if has_gpu():
        engine |= {"attention_backend": EXACT, "max_num_seqs": 32}
        # It runs while others start.
        engine |= {"kv_cache_memory_bytes": 1 << 30, "gpu_memory_utilization": 0.02}
        few = {"requests": 100, "output_tokens": 48, "seconds": 60}
    else:
        engine |= {"enforce_eager": True, "gpu_memory_utilization": 0.4, "max_num_seqs": 8}
        few = {"requests": 4, "output_tokens": 10, "seconds": 0}
    made = {"cache": str(cache), "policy": POLICY}
    return {**made, **few, "engine": engine}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the file for what was found")
    parser.add_argument("--cache", type=Path, default=Path("build/gpu-models"))
    arguments = parser.parse_args()
    prepare_process()
    try:
        for found in check(settings_of(arguments.cache)):
            write_json(arguments.out, found)
    except Skip as why:
        found = {"problems": [f"not run: {why}"]}
        write_json(arguments.out, found)
    print(found["problems"] or "no output differs")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
