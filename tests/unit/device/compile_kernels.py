"""Compile every kernel for an H100, where none is needed; prints one line per kernel.

Run as a program: Triton must not have been imported for its interpreter.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

for folder in (".", "../policy", "../replay", "../vllm/v2"):
    sys.path.append(str(Path(__file__).parent / folder))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
from random_models import random_model  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402
from v2_made import NEURAL_CAP, made_of  # noqa: E402

from adaspec.device.answers import Answers  # noqa: E402
from adaspec.device.kernels.predictor import FusedPredictor  # noqa: E402
from adaspec.device.predictor import Batch, Predictor  # noqa: E402
from adaspec.draft.answers import LEAST_BYTES, AnswerIndex  # noqa: E402
from adaspec.policy.planner.memory import knob_row  # noqa: E402
from adaspec.predict.tables import packed  # noqa: E402
from adaspec.vllm.v2 import packing  # noqa: E402
from adaspec.vllm.v2.report import Layout  # noqa: E402

SLOTS, ROWS, CONTEXT, CAP = 6, 4, 300, 12


def run_steps(predictor: Predictor, device: torch.device, forwards: int, budget: bool) -> None:
    """A request enters, and two steps follow of which the second learns the first one's outcome."""
    counts = torch.full((SLOTS,), 100, dtype=torch.int32, device=device)
    few = torch.ones(ROWS, dtype=torch.int32, device=device)
    batch = Batch(
        slots=torch.arange(ROWS, device=device),
        tokens=torch.ones((SLOTS, CONTEXT), dtype=torch.int32, device=device),
        context_tokens=counts,
        prompt_tokens=counts // 2,
        holds_neural=torch.ones(SLOTS, dtype=torch.bool, device=device),
        sampled=few,
        rejected=few - 1,
    )
    price = torch.zeros((), dtype=torch.float64, device=device)
    predictor.enter(torch.zeros(1, dtype=torch.int64, device=device))
    for _ in range(2):
        step = predictor.begin(batch)
        predictor.expect(step, price, torch.ones(3, dtype=torch.float64, device=device))
        for _ in range(forwards):
            predictor.revise(step, few, torch.zeros((ROWS, 3), device=device))
        lengths = (
            predictor.choose_within(step, counts[0], price) if budget else predictor.choose(step)
        )
        proposal = predictor.propose(step, predictor.extended(step, lengths))
        batch = batch._replace(
            context_tokens=counts + proposal.neural_len.sum(), sampled=few + proposal.neural_len
        )


class _Driver:
    """What Triton asks about the GPU before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    triton.runtime.driver.set_active(_Driver())
    run, compiled = JITFunction.run, set()

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in compiled:
            compiled.add(kernel.hash)
            print(kernel.metadata.name, len(kernel.asm["cubin"]), flush=True)
        return kernel

    JITFunction.run = compile_only
    empty, device = np.empty(0, np.float32), torch.device("cpu")
    tables = packed(np.empty(0, np.uint64), empty, empty, empty, (0.1, 0.1, 1, 1), 3)
    for evidence in (True, False):
        model = random_model(3, tables, evidence=evidence)
        for answers in (None, Answers.of(AnswerIndex(LEAST_BYTES), SLOTS, device)):
            predictor = FusedPredictor(model, knob_row({}), SLOTS, CAP, device, answers=answers)
            for within in (True, False):
                run_steps(predictor, device, 2, within)
    for forwards in (0, 1, 2):
        made, limits = made_of(0, 4, CAP, forwards)
        made = made._replace(drafted=made.drafted.clone())
        for rows in (None, limits):
            packing.pack_at_once(Layout(CAP, NEURAL_CAP), made, rows, 100)


if __name__ == "__main__":
    main()
