"""One engine, in a process that lives as long as all others: measures what it is told to.

    python eval/gpu/served.py ENGINE.json

Reads commands from standard input and answers each on standard output, a line of JSON each. Between
two commands it does nothing. What it logs goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from engines import has_gpu, model_runner, opened, prepare_process

Say = Callable[[dict[str, Any]], None]


def serve(settings: dict[str, Any], say: Say) -> None:
    """Start the engine, and run cells until there are no more commands."""
    prepare_process()
    # These need torch or vLLM.
    from forced import Forcing, Recordings, replace
    from loop import ClosedLoop
    from steps import Steps
    from workload import draw, recorded

    from adaspec.vllm import measuring
    from adaspec.vllm.configuration import hardware

    def measure_alone(original: Callable[..., None], *engine: Any) -> None:
        say({"waits": "to measure its costs alone"})
        sys.stdin.readline()
        original(*engine)

    requests = recorded(settings["requests"])
    steps, forcing = Steps(), Forcing(Recordings(requests))
    target, config, arguments = (settings[name] for name in ("target", "config", "arguments"))
    with ExitStack() as stack:
        stack.enter_context(forcing.installed())
        stack.enter_context(steps.watched())
        replace(stack, measuring, "measure_at_start", measure_alone)
        llm = stack.enter_context(opened(target, config, arguments))
        steps.put_into(llm)
        loop = ClosedLoop(llm, requests, steps)
        lengths = [len(each.output_tokens) for each in requests]
        say({"ready": {"hardware": hardware(), "requests": len(requests), **facts(llm)}})
        for line in sys.stdin:
            asked = json.loads(line)
            order = draw(lengths, asked["load"], asked["round"], asked["counted"])
            loop.set(asked["length"], asked["stage"] == "rejected", asked.get("bound_ms"))
            say({"cell": loop.run(order, asked["load"], asked["stage"] == "profile")})


def facts(llm: Any) -> dict[str, Any]:
    """What an engine came to."""
    import torch

    from adaspec.cost.load import cost_document

    runner = model_runner(llm)
    session, config = getattr(runner, "adaspec_session", None), runner.vllm_config
    groups = [each for groups in runner.attn_groups for each in groups]
    found = {
        "graphs": config.compilation_config.cudagraph_mode.name,
        "largest_graph": max(config.compilation_config.cudagraph_capture_sizes or (0,)),
        "kv_tokens": config.cache_config.num_gpu_blocks * config.cache_config.block_size,
        "attention": sorted({each.backend.get_name() for each in groups}),
    }
    if session is not None:
        cost = cost_document(session.serving.setup.cost)
        found |= {"trims": session.trims, "policy": session.serving.name, "cost": cost}
    if has_gpu():
        from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

        found["flash_attention"] = get_flash_attn_version()
        free, whole = torch.cuda.mem_get_info()
        found |= {"free_gib": free / 2**30, "gpu_gib": whole / 2**30}
        found["reserved_gib"] = torch.cuda.memory_reserved() / 2**30
    return found


def main() -> int:
    """Run the command line; what goes wrong is answered, too."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where libraries may print what they like

    def say(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        serve(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), say)
    except Exception as error:
        traceback.print_exc()
        say({"error": " ".join(f"{type(error).__name__}: {error}".split())[:600]})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
