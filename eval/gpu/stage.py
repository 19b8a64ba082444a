"""Does stages, one after the other, in this process; started by run.py.

python eval/gpu/stage.py OUT NAME [NAME ...]
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines import Skip, prepare_process
from results import DONE, FAILED, SCHEMA, SKIPPED, Cells, read_json, write_json

Doing = Callable[[dict[str, Any], Cells, Path], dict[str, Any]]


def _doing(kind: str) -> Doing:
    """The function of a kind of stage; its module needs torch or vLLM."""
    if kind in ("expected", "lossless"):
        import lossless

        return {"expected": lossless.expect, "lossless": lossless.check}[kind]
    import costs

    return costs.profile


def do(stage: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Do a stage; the document of what came of it."""
    settings, began_s = stage["settings"], time.perf_counter()
    cells = Cells(folder / "cells" / f"{stage['name']}.jsonl", settings)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "stage": stage["name"],
        "part": stage["part"],
        "settings": settings,
        "status": DONE,
        "why": None,
    }
    try:
        _check_models(stage)
        found = _doing(stage["kind"])(settings | {"runner": stage["runner"]}, cells, folder)
        document["result"] = found
        problems = found.get("problems")
        if problems:
            document |= {"status": FAILED, "why": "; ".join(problems)}
    except Skip as why:
        document |= {"status": SKIPPED, "why": str(why)}
    except Exception as error:
        traceback.print_exc()
        why = " ".join(f"{type(error).__name__}: {error}".split())[:600]
        document |= {"status": FAILED, "why": why, "traceback": traceback.format_exc()}
    return document | {"seconds": time.perf_counter() - began_s, "machine": machine()}


def _check_models(stage: dict[str, Any]) -> None:
    """Raise `Skip` where the stage's target is not there."""
    target = stage["settings"].get("target")
    if target not in (None, "tiny") and not Path(target).is_dir():
        raise Skip(f"the target is not there: {target}: give its folder by --target")


def machine() -> dict[str, Any]:
    """What a stage ran on."""
    import torch

    from adaspec.vllm.compatibility import installed_version
    from adaspec.vllm.machine import hardware

    return {
        "hardware": hardware(),
        "vllm": installed_version(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def main() -> None:
    """Run the command line; what comes of a stage stands in its document."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    plan = read_json(folder / "plan.json")
    assert plan is not None
    stages = [plan["stages"][name] for name in names]
    prepare_process(stages[0]["runner"])
    for stage in stages:
        print(f"--- {stage['name']}", file=sys.stderr, flush=True)
        write_json(folder / "stages" / f"{stage['name']}.json", do(stage, folder))


if __name__ == "__main__":
    main()
