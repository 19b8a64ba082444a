"""On CPU tensors a step's rows are read from an engine's buffers, and drafted for."""

import numpy as np
import pytest
from random_models import random_model
from session_fakes import no_tables

torch = pytest.importorskip("torch", reason="torch is not installed")

from adaspec.kernels.batch import Batch  # noqa: E402
from adaspec.vllm.session.predictor import HostPredictor  # noqa: E402

CAP, SLOTS = 6, 3
TEXT = [7, 8, 9, 1, 2, 5, 7, 8]


def counts(*values):
    return torch.tensor(values, dtype=torch.int32)


def begun(evidence=True, price=0.1):
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
    predictor = HostPredictor(model, SLOTS, CAP)
    settings = torch.tensor([price, 1.0, 1.0, 1.0], dtype=torch.float64)
    return predictor, predictor.begin(batch, settings[0], settings[1:])


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
    assert predictor.planner.state.neural[1, 1] == 0.0


@pytest.mark.parametrize("price", [0.0, 1.0])
@pytest.mark.parametrize("evidence", [True, False])
def test_tokens_are_those_of_the_draft_and_of_the_match_behind_it(evidence, price):
    predictor, step = begun(evidence, price)
    predictor.revise(step, torch.tensor([[9, 1], [3, 3]]), -torch.ones((2, 2, 3)))
    proposal = predictor.propose(step)
    neural, ngram = (each.tolist() for each in proposal.lengths)
    # Nothing is known of the second row, and it does not hold the drafter.
    assert neural[1] == ngram[1] == 0
    drafted, copied = [9, 1][: neural[0]], [9, 1, 2, 5, 7, 8]
    tokens = (drafted + copied[neural[0] :])[: neural[0] + ngram[0]]
    assert tokens
    assert proposal.tokens.tolist() == [tokens + [-1] * (CAP - len(tokens)), [-1] * CAP]
    if price:
        assert [each.tolist() for each in proposal.wanted] == [[0, 0], [0, 0]]
    survival = proposal.survival.numpy()
    assert (np.diff(survival) <= 0).all()
    assert ((survival > 0) == (proposal.tokens.numpy() >= 0)).all()
    assert not proposal.from_answers.any()
