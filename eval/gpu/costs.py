"""What steps cost: profiles of V1 and V2, as `adaspec profile` takes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engines import models_of, opened
from results import Cells

from adaspec.cost.load import save_cost
from adaspec.profile.engine import MEASURED, Subject, profile_engine
from adaspec.vllm.machine import hardware


def profile(settings: dict[str, Any], cells: Cells, folder: Path) -> dict[str, Any]:
    """Profile an engine, and write its cost model."""
    target, head = models_of(settings)
    runner = settings["runner"]
    subject = Subject(target, head, settings["engine"], "eagle3")
    config = {**MEASURED, "model": head, "draft_method": "eagle3", "policy": settings["policy"]}
    with opened(target, config, runner, subject.engine) as llm:
        taken = profile_engine(llm, subject, settings["minutes"])
    # Its folder says nothing to others.
    name = f"{settings['called'].rpartition('/')[2]} on {hardware()}, {runner}"
    taken = replace(taken, cost=replace(taken.cost, name=name, target=settings["called"]))
    (folder / "costs").mkdir(exist_ok=True)
    save_cost(taken.cost, folder / "costs" / f"{settings['name']}.json", taken.fit)
    return taken.document()
