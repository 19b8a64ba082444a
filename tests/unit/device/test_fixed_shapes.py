"""A whole step runs where no tensor has values: nothing waits for the device, no shape hangs on it.

A fake tensor refuses whatever would need its values (`item`, boolean indexing, `nonzero`). A meta
tensor refuses, besides, to meet a tensor that was made on another device than its own.
"""

from __future__ import annotations

import numpy as np
import pytest
from random_models import random_model

from adaspec.draft.answers import LEAST_BYTES, AnswerIndex
from adaspec.policy.planner.memory import knob_row
from adaspec.predict.tables import packed

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._subclasses.fake_tensor import (  # noqa: E402
    FakeTensorMode,
)

from adaspec.device.answers import Answers  # noqa: E402
from adaspec.device.model import DeviceModel  # noqa: E402
from adaspec.device.predictor import Batch, Predictor, Proposal  # noqa: E402

SLOTS, ROWS, CONTEXT, CAP = 6, 4, 300, 12


def run_steps(predictor: Predictor, device: torch.device, forwards: int, budget: bool) -> Proposal:
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
    return proposal


@pytest.mark.parametrize(
    ("evidence", "forwards", "budget", "remembers"),
    [  # any two of the four in all of their ways
        (False, 0, False, False),
        (False, 3, True, True),
        (True, 0, True, True),
        (True, 3, False, True),
        (True, 3, True, False),
    ],
)
def test_a_step_needs_no_tensors_values(
    evidence: bool, forwards: int, budget: bool, remembers: bool
) -> None:
    device, knobs = torch.device("cpu"), knob_row({})
    empty = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), empty, empty, empty, (0.1, 0.1, 1, 1), 3)
    model = random_model(3, tables, evidence=evidence)
    index = AnswerIndex(LEAST_BYTES)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        answers = Answers.of(index, SLOTS, device) if remembers else None
        predictor = Predictor(DeviceModel(model, device), knobs, SLOTS, CAP, answers)
        mode.allow_non_fake_inputs = False
        proposal = run_steps(predictor, device, forwards, budget)
    assert proposal.tokens.shape == proposal.survival.shape == (ROWS, CAP)
    meta = torch.device("meta")
    answers = Answers.of(index, SLOTS, meta) if remembers else None
    predictor = Predictor(DeviceModel(model, meta), knobs, SLOTS, CAP, answers)
    assert run_steps(predictor, meta, forwards, budget).tokens.device == meta
