"""The kernels compute what the torch operations do that say what they mean."""

from __future__ import annotations

import numpy as np
import pytest
from engine import Engine
from interpreter import DEVICE, torch
from learned_recordings import random_recording
from made_answers import random_answers
from random_models import random_knobs, random_model

from adaspec.device.curves import Expectations
from adaspec.device.kernels.predictor import FusedPredictor
from adaspec.device.lengths import Lengths
from adaspec.device.model import DeviceModel
from adaspec.device.predictor import Predictor
from adaspec.policy.planner.memory import knob_row
from adaspec.train.token_tables import TableMaker

pytestmark = pytest.mark.slow

CLOSE = 1e-9 if DEVICE.type == "cpu" else 1e-6
"""Both compute in double precision: only the order of sums differs, and a power's last bits.

A GPU's logarithm may differ in its last bit, too, and so may the float32 that it is rounded to.
"""


class Compared:
    """Holds what one predictor says to what another does."""

    def close(self, what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
        """Hold that two tensors are equal, numbers up to the last digits."""
        assert found.shape == wanted.shape, what
        theirs, ours = found.cpu().numpy(), wanted.cpu().numpy()
        if wanted.dtype == torch.int64 or wanted.dtype == torch.bool:
            np.testing.assert_array_equal(theirs, ours, what)
            return
        theirs, ours = theirs.astype(np.float64), ours.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(theirs), np.isnan(ours), what)
        far = np.nan_to_num(np.abs(theirs - ours) / np.maximum(np.abs(ours), 1.0)).max(initial=0.0)
        assert far < CLOSE, (what, far)

    def expectations(self, found: Expectations, wanted: Expectations) -> None:
        for name in Expectations._fields:
            self.close(name, getattr(found, name), getattr(wanted, name))

    def lengths(self, found: Lengths, wanted: Lengths) -> None:
        self.close("neural length", found.neural, wanted.neural)
        self.close("n-gram length", found.ngram, wanted.ngram)


@pytest.mark.parametrize(
    ("forwards", "evidence", "remembers", "longest"),
    [
        (0, True, True, 90),
        (1, False, False, 12),
        (1, True, True, 2500),
        (2, True, False, 90),
        (3, False, True, 700),
        (4, True, False, 12),
        (4, True, True, 90),
    ],
)
def test_steps_are_those_of_the_torch_operations(
    forwards: int, evidence: bool, remembers: bool, longest: int
) -> None:
    rng = np.random.default_rng([forwards, evidence])
    recording = random_recording(forwards, "tokens")
    tables = TableMaker(recording, 0).make(np.ones(len(recording), np.bool_))
    model, knobs = (
        random_model(forwards + 5, tables, evidence=evidence),
        knob_row(random_knobs(rng)),
    )
    engine = Engine(rng, 3, longest, 3, DEVICE)
    cap = max(forwards, int(rng.choice([3, 7, 48])))
    slots = len(engine.known)
    answers = random_answers(rng, slots, 3, DEVICE)[1] if remembers else None
    twin = Predictor(DeviceModel(model, DEVICE), knobs, cap, answers)
    fused = FusedPredictor(model, knobs, slots, cap, DEVICE, splits=2, answers=answers)
    taken = 0
    compared = Compared()
    fused.warm_up(engine.batch)
    for step in range(5):
        if step == 3:
            engine.replace(0)
        batch = engine.batch
        price = torch.tensor(rng.uniform(0.01, 0.5), dtype=torch.float64, device=DEVICE)
        factors = torch.from_numpy(rng.uniform(0.5, 1.4, 3)).to(DEVICE)
        wanted, found = twin.begin(batch), fused.begin(batch)
        compared.close("features", found.features, wanted.features)
        twin.expect(wanted, price, factors)
        fused.expect(found, price, factors)
        compared.close("emitted", fused.emitted(found), twin.emitted(wanted))
        for name in ("prompt_tokens", "position", "holds", "tail", "candidate"):
            compared.close(name, getattr(found.rows, name), getattr(wanted.rows, name))
        for name, column in wanted.rows.match._asdict().items():
            compared.close(name, getattr(found.rows.match, name), column)
        compared.expectations(found.expected, wanted.expected)
        for _ in range(forwards):
            token, confidence = engine.draft()
            twin.revise(wanted, token, confidence)
            fused.revise(found, token, confidence)
            compared.expectations(found.expected, wanted.expected)
        chosen, ours = twin.choose(wanted), fused.choose(found)
        compared.lengths(ours, chosen)
        if step == 4:
            chosen, ours = twin.extended(wanted, chosen), fused.extended(found, ours)
            compared.lengths(ours, chosen)
        proposal, proposed = twin.propose(wanted, chosen), fused.propose(found, ours)
        for name in proposal._fields:
            compared.close(name, getattr(proposed, name), getattr(proposal, name))
        taken += int(proposal.from_answers.sum())
        engine.verify(proposal)
    assert remembers or not taken
