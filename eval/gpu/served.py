"""One engine, in a process that lives as long as its group: measures what it is told to.

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
from pathlib import Path
from typing import Any

from engines import has_gpu, model_runner, opened, prepare_process

Say = Callable[[dict[str, Any]], None]


def serve(settings: dict[str, Any], say: Say) -> None:
    """Start the engine, and run cells until there are no more commands."""
    prepare_process("V2")
    # These need torch or vLLM.
    from forced import Forcing, Recordings
    from loop import ClosedLoop
    from steps import Steps
    from workload import draw, recorded

    from adaspec.vllm.configuration import hardware

    requests = {name: recorded(each) for name, each in settings["workloads"].items()}
    everything = [request for each in requests.values() for request in each]
    steps, forcing = Steps(), Forcing(Recordings(everything))
    target, config, arguments = (settings[name] for name in ("target", "config", "arguments"))
    with forcing.installed(), steps.watched(), opened(target, config, "V2", arguments) as llm:
        steps.put_into(llm)
        loops, first = {}, 0
        for name, each in requests.items():
            loops[name], first = ClosedLoop(llm, each, first, steps), first + len(each)
        lengths = {
            name: [len(one.output_tokens) for one in each] for name, each in requests.items()
        }
        say({"ready": {"hardware": hardware(), **facts(llm)}, "outputs": lengths})
        for line in sys.stdin:
            asked = json.loads(line)
            name, load = asked["workload"], asked["load"]
            order = draw(lengths[name], load, asked["seed"], asked["least"], asked["passes"])
            say({"cell": loops[name].run(order, load, asked["length"])})


def facts(llm: Any) -> dict[str, Any]:
    """What an engine came to."""
    import torch

    runner = model_runner(llm)
    worker, config = getattr(runner, "adaspec_session", None), runner.vllm_config
    found = {
        "graphs": config.compilation_config.cudagraph_mode.name,
        "largest_graph": max(config.compilation_config.cudagraph_capture_sizes or (0,)),
        "kv_tokens": config.cache_config.num_gpu_blocks * config.cache_config.block_size,
        "attention": sorted({each.backend.get_name() for each in _groups(runner)}),
    }
    if worker is not None:
        found |= {"trims": worker.trims, "policy": worker.serving.name}
    if has_gpu():
        free, whole = torch.cuda.mem_get_info()
        found |= {"free_gib": free / 2**30, "gpu_gib": whole / 2**30}
        found["reserved_gib"] = torch.cuda.memory_reserved() / 2**30
    return found


def _groups(runner: Any) -> list[Any]:
    return [each for groups in runner.attn_groups for each in groups]


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
