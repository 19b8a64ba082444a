"""The kernels are few, and compile for a GPU that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter import DEVICE, torch
from random_models import random_model
from test_fixed_shapes import CAP, ROWS, SLOTS
from torch.utils._python_dispatch import TorchDispatchMode

from adaspec.device.answers import Answers
from adaspec.device.kernels import choose
from adaspec.device.kernels.predictor import FusedPredictor
from adaspec.device.model import DeviceModel
from adaspec.device.predictor import Batch, Predictor
from adaspec.draft.answers import LEAST_BYTES, AnswerIndex
from adaspec.policy.planner.memory import knob_row
from adaspec.predict.tables import packed


class Operations(TorchDispatchMode):
    """Counts the operations that a device would be given; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func._schema.returns
        is_view = bool(returned) and returned[0].alias_info and not returned[0].alias_info.is_write
        self.count += not is_view
        return func(*args, **(kwargs or {}))


def count_step(predictor: Any, forwards: int, budget: bool, launches: list[str]) -> int:
    """The operations and launches of one step."""
    counts = torch.full((SLOTS,), 100, dtype=torch.int32, device=DEVICE)
    few = torch.ones(ROWS, dtype=torch.int32, device=DEVICE)
    batch = Batch(
        slots=torch.arange(ROWS, device=DEVICE),
        tokens=torch.ones((SLOTS, 300), dtype=torch.int32, device=DEVICE),
        context_tokens=counts,
        prompt_tokens=counts // 2,
        holds_neural=torch.ones(SLOTS, dtype=torch.bool, device=DEVICE),
        sampled=few,
        rejected=few - 1,
    )
    price = torch.tensor(0.1, dtype=torch.float64, device=DEVICE)
    factors = torch.ones(3, dtype=torch.float64, device=DEVICE)
    confidence = torch.zeros((ROWS, 3), device=DEVICE)
    launches.clear()
    with Operations() as operations:
        step = predictor.begin(batch)
        predictor.expect(step, price, factors)
        for _ in range(forwards):
            predictor.revise(step, few, confidence)
        if budget:
            lengths = predictor.choose_within(step, counts[0], price)
        else:
            lengths = predictor.choose(step)
        predictor.propose(step, lengths)
    return operations.count + len(launches)


def test_a_step_takes_few_launches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launches: list[str] = []

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        launches.append(self.__name__)

    monkeypatch.setattr(type(choose.choose), "run", launch)
    empty = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), empty, empty, empty, (0.1, 0.1, 1, 1), 3)
    for evidence in (True, False):
        model, knobs = random_model(3, tables, evidence=evidence), knob_row({})
        for budget in (False, True):
            for forwards in (0, 1, 2):
                for answers in (None, Answers.of(AnswerIndex(LEAST_BYTES), SLOTS, DEVICE)):
                    twin = Predictor(DeviceModel(model, DEVICE), knobs, SLOTS, CAP, answers)
                    fused = FusedPredictor(model, knobs, SLOTS, CAP, DEVICE, answers=answers)
                    before = count_step(twin, forwards, budget, launches)
                    after = count_step(fused, forwards, budget, launches)
                    what = f"{evidence=} {budget=} {forwards=} answers={answers is not None}"
                    with capsys.disabled():
                        print(f"\n{what}: {before} -> {after}", end="")
                    if evidence:
                        assert after == 5 + 2 * forwards + 3 * budget


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h100(tmp_path: Path) -> None:
    program = Path(__file__).parent / "compile_kernels.py"
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, str(program)],
        env=variables | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    compiled = [line.split()[0] for line in ran.stdout.splitlines()]
    names = set(compiled)
    wanted = {
        "scan",
        "observe",
        "expect",
        "revise",
        "choose",
        "count_tokens",
        "splice",
        "extend",
        "propose",
        "pack",
    }
    assert names == wanted
    # With limits and without, however many forwards ran: a server has compiled it at its start.
    assert compiled.count("pack") == 2
