"""`adaspec profile`: measures what steps cost in an engine that is started for that alone.

The steps are those that a server measures as it starts, in more rounds.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import cost_document, load_cost
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.engine import open_engine, prepare_vllm
from adaspec.vllm.measuring import Measured, Report, measure
from adaspec.vllm.options import Options
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE

GOAL = 0.10
"""Mean error on held-out kinds of step that a profile should stay within."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The costs of this machine, and of what engine they are."""

    measured: Measured
    runner: str
    """The model runner that ran the steps, V1 or V2."""
    engine: dict[str, Any]
    """Version, arithmetic and drafter of the engine that was measured."""

    @property
    def complaints(self) -> list[str]:
        """What speaks against using it."""
        off = self.measured.fit.mean_error
        said = (
            f"the fit is off by {off:.1%} on held-out steps, the goal is {GOAL:.0%}: stop what "
            "else runs here, or give more --minutes"
        )
        return [said] if off > GOAL else []

    def document(self) -> dict[str, Any]:
        """The profile as `adaspec profile --json` prints it."""
        return {
            "schema": 2,
            "runner": self.runner,
            "cost": cost_document(self.measured.cost),
            "fit": structs.asdict(self.measured.fit),
            "complaints": self.complaints,
            "steps": [asdict(step) for step in self.measured.steps],
            "seconds": self.measured.took_s,
            "engine": self.engine,
        }


def profile_machine(
    model: str,
    draft: str | None,
    draft_method: str | None,
    arguments: dict[str, Any],
    minutes: float,
    report: Report,
) -> Profile:
    """Start vLLM's `LLM(arguments)` with a drafter, measure and fit, or raise an `AdaspecError`."""
    report("starting vLLM", 0, 1)
    # What is asked of the engine's workers are functions, which only this process can hand them.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    prepare_vllm("profiling")
    config = {"method": "adaspec", "guard": False, "model": draft, "draft_method": draft_method}
    config |= {"cost": DEFAULT}  # so nothing is measured at the start
    llm = open_engine(model, config, {"disable_log_stats": True, **arguments})
    report("starting vLLM", 1, 1)
    settings = llm.llm_engine.vllm_config
    options: Options = getattr(settings.speculative_config, OPTIONS_ATTRIBUTE)
    try:
        measured = measure(
            llm.collective_rpc,
            load_cost(DEFAULT),
            enough_s=60 * minutes,
            most_s=max(60 * minutes, 60.0),
            rounds=None,
            report=report,
        )
    finally:
        llm.llm_engine.engine_core.shutdown()
    name = f"{Path(model).name or model} on {options.hardware}"
    cost = structs.replace(measured.cost, name=name, target=model, hardware=options.hardware)
    facts = {
        "vllm": installed_version(),
        "dtype": str(settings.model_config.dtype).removeprefix("torch."),
        "drafter": draft,
        "arguments": arguments,
    }
    return Profile(measured._replace(cost=cost), options.runner, facts)
