"""On CPU tensors a step's rows are read from an engine's buffers, and drafted for."""

import numpy as np
import pytest
from random_models import random_model
from v2_fakes import no_tables

torch = pytest.importorskip("torch", reason="torch is not installed")

from adaspec.kernels.batch import Batch, Lengths  # noqa: E402
from adaspec.policy.planner.memory import knob_row  # noqa: E402
from adaspec.vllm.v2.predictor import HostPredictor  # noqa: E402

CAP, SLOTS = 6, 3
TEXT = [7, 8, 9, 1, 2, 5, 7, 8]


def counts(*values):
    return torch.tensor(values, dtype=torch.int32)


def begun(evidence=True):
    """A step of two rows in the slots 2 and 0, of which the first repeats itself."""
    tokens = torch.full((SLOTS, 20), 3, dtype=torch.int32)
    tokens[2, : len(TEXT)] = torch.tensor(TEXT)
    tokens[0, 0] = 4
    batch = Batch(
        slots=torch.tensor([2, 0]),
        tokens=tokens,
        context_tokens=counts(1, 0, len(TEXT)),
        prompt_tokens=counts(1, 0, 5),
        holds_neural=torch.tensor([False, True, True]),
        sampled=counts(2, 0),
        rejected=counts(1, 0),
    )
    model = random_model(5, no_tables(), evidence=evidence)
    predictor = HostPredictor(model, knob_row({}), SLOTS, CAP)
    step = predictor.begin(batch)
    ones = torch.ones(3, dtype=torch.float64)
    predictor.expect(step, torch.tensor(0.1, dtype=torch.float64), ones)
    return predictor, step


def test_what_is_known_of_rows_is_read_from_the_slots():
    predictor, step = begun()
    rows = predictor.planner.rows
    assert rows.position[:2].tolist() == [3, 0]
    assert rows.length[:2].tolist() == [2, 0]
    assert rows.start[:2].tolist() == [2, -1]
    assert rows.tail[:2].tolist() == [[5, 7, 8], [-1, -1, 4]]
    assert rows.candidate[0].tolist() == [9, 1, 2, 5, 7, 8, -1, -1]
    assert step.decides.tolist() == [True, False]
    assert step.holds.tolist() == [True, False]
    assert step.available.tolist() == [6, 0]
    assert step.emitted.tolist() == [[7, 8, *[-1] * 5], [-1] * 7]
    assert predictor.planner.memory.neural[1, 1] == 0.0


@pytest.mark.parametrize("evidence", [True, False])
def test_tokens_are_those_of_the_draft_and_of_the_match_behind_it(evidence):
    predictor, step = begun(evidence)
    for token in (9, 1):
        predictor.revise(step, torch.tensor([token, 3]), -torch.ones((2, 3)))
    predictor.extended(step, predictor.choose(step))
    lengths = Lengths(torch.tensor([2, 0]), torch.tensor([3, 0]))
    proposal = predictor.propose(step, lengths)
    assert proposal.tokens.tolist() == [[9, 1, 2, 5, 7, -1], [-1] * 6]
    survival = proposal.survival.numpy()
    assert (np.diff(survival) <= 0).all()
    assert not survival[0, 5:].any()
    assert not survival[1].any()
    copied = predictor.propose(step, Lengths(torch.tensor([0, 0]), torch.tensor([4, 0])))
    assert copied.tokens[0].tolist() == [9, 1, 2, 5, -1, -1]
    assert not copied.from_answers.any()
