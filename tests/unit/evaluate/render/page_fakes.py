"""A small page of a real evaluation, with markup planted in every name that it shows."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from synthetic import Workload, synthesize

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.evaluate.evaluation import evaluate_by, player_of
from adaspec.evaluate.options import Options
from adaspec.evaluate.selection import Selection
from adaspec.policy.spec import parse_policy
from adaspec.predict.tables import packed
from adaspec.trace.schema import Request

sys.path.insert(0, str(Path(__file__).parents[2] / "policy"))
from random_models import random_policy

PLANTED = "</script><script>window.planted=1</script><img src=x onerror=window.planted=2>"
WORKLOADS = (
    Workload("edits", (30, 60), (16, 40), 0.6, 12.0, 0.3, 0.8, 0.3),
    Workload(f"talk{PLANTED}", (20, 40), (16, 40), 0.05, 5.0, 0.5, 0.75, 0.35),
)


def requests(count: int = 6) -> list[Request]:
    """Requests of both workloads; each id holds the planted markup."""
    made = synthesize(0, WORKLOADS, count, 8)
    return [replace(request, id=f"{request.id}{PLANTED}") for request in made]


def document(count: int = 6) -> dict:
    """A report's document, a learned policy among the named."""
    nothing = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), *[nothing] * 3, (0.5, 0.5, 1.0, 1.0), 1)
    rng = np.random.default_rng(3)
    learned = random_policy(rng, tables, evidence=False, cap=16, neural_cap=8)
    learned.name = f"mine{PLANTED}"
    named = [learned, parse_policy("hybrid-splice:2:8:2:1:4")]
    selection = Selection(tuple(requests(count)), 8, ("traces",), "target", "drafter", True)
    options = Options(concurrency=(1, 4), orders=1, resamples=3, jobs=1)
    player = player_of(selection, named, H100_LLAMA_3_1_8B, options)
    made = evaluate_by(player, selection, named, H100_LLAMA_3_1_8B, options)
    return made | {"command": f"adaspec eval {PLANTED}"}
