"""Step by step, the kernels compute what the host's compiled functions do."""

from __future__ import annotations

import numpy as np
import pytest
from engine import Engine
from interpreter import DEVICE, torch
from learned_recordings import random_recording
from made_answers import OWNERS, empty_index, random_answers
from random_models import random_model
from recorded_states import Recorded, recorded_requests

from adaspec.draft.answers import HEAD, AnswerIndex
from adaspec.draft.match import MATCH_FIELDS
from adaspec.kernels.batch import Answers, Batch, Lengths, Proposal
from adaspec.kernels.layout import (
    CONTEXT,
    EXPECTED_AT,
    FIRST,
    LEAST_AT,
    MATCH,
    MATCH_FACTS,
    MATCHING_TOKENS,
    NEURAL_AT,
    NGRAM_AT,
    POSITION,
    SPLICE_AT,
    SPLICE_LANES,
    SPLICE_MATCHES,
)
from adaspec.kernels.predictor import FusedPredictor
from adaspec.policy.learned import load_policy
from adaspec.policy.planner.state import (
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
)
from adaspec.predict.model import HEADS, Model
from adaspec.predict.network import constant_network
from adaspec.predict.survival import Curves
from adaspec.predict.tables import no_tables
from adaspec.train.token_tables import TableMaker
from adaspec.vllm.session.predictor import HostPredictor

pytestmark = pytest.mark.slow

CLOSE = 1e-5
"""The host's networks compute in single precision, kernels in double."""


class Pair:
    """Takes both predictors through steps, and holds one to what the other says."""

    def __init__(
        self,
        model: Model,
        slots: int,
        cap: int,
        index: AnswerIndex | None = None,
        answers: Answers | None = None,
    ) -> None:
        self.host = HostPredictor(model, slots, cap, index)
        self._owners = answers.owners.cpu().numpy() if answers else np.zeros(slots, np.int32)
        self.enter(*range(slots))
        self.fused = FusedPredictor(model, slots, cap, DEVICE, splits=2, answers=answers)
        self.cap, self.choices, self.other_choices = cap, 0, 0
        self.largest = 0.0
        """How far any number of one has been from the other's, relative to those above 1."""

    def enter(self, *slots: int) -> None:
        """Other requests take these slots."""
        self.host.enter(np.array(slots, np.int32), self._owners[[*slots]])

    def step(
        self,
        batch: Batch,
        drafts: list[tuple[torch.Tensor, torch.Tensor]],
        price: float,
        factors: np.ndarray,
    ) -> Proposal:
        """One step with these tokens and confidences of its forwards; what the host proposes."""
        self.price, self.count = price, len(batch.slots)
        settings = torch.tensor([price, *factors], dtype=torch.float64)
        ours = self.host.begin(on_cpu(batch), settings[0], settings[1:])
        settings = settings.to(DEVICE)
        theirs = self.fused.begin(batch, settings[0], settings[1:])
        for name in ("context_tokens", "decides", "holds", "available", "emitted"):
            self._same(name, getattr(theirs, name), getattr(ours, name).numpy())
        self._compare_facts()
        self._compare_curves(0)
        tokens, confidences = stacked(drafts, self.count)
        self.host.revise(ours, tokens, confidences)
        self.fused.revise(theirs, tokens.to(DEVICE), confidences.to(DEVICE))
        for depth in range(1, len(drafts) + 1):
            behind = self._facts(
                SPLICE_MATCHES.value + (depth - 1) * MATCH_FACTS.value, MATCH_FIELDS
            )
            self._same(
                "match behind", behind, self.host.splice_matches[depth - 1, :, : self.count].T
            )
        self._compare_curves(len(drafts))
        worth = self._state.splice_value[: self.count].copy()
        wanted, found = self.host.propose(ours), self.fused.propose(theirs)
        same = self._compare_choice(wanted.wanted, found.wanted, worth)
        for name, lengths, proposed in zip(
            Lengths._fields, wanted.lengths, found.lengths, strict=True
        ):
            self._same(f"extended {name}", proposed[same], lengths[same].numpy())
        self._close("gain", found.neural_gain, wanted.neural_gain.numpy())
        self._close("survival", found.survival[same], wanted.survival[same].numpy())
        for name in ("tokens", "from_answers"):
            self._same(name, getattr(found, name)[same], getattr(wanted, name)[same].numpy())
        return wanted

    @property
    def _state(self):
        return self.host.planner.state

    def _facts(self, first: int, columns: int) -> torch.Tensor:
        return self.fused.rows.facts[: self.count, first : first + columns]

    def _curves(self, first: int, columns: int) -> torch.Tensor:
        return self.fused.rows.curves[: self.count, first : first + columns]

    def _compare_facts(self) -> None:
        rows, count = self.host.planner.rows, self.count
        match = (rows.length, rows.start, rows.votes, rows.occurrences, rows.available)
        wanted = {
            CONTEXT: rows.prompt_tokens + rows.position,
            POSITION: rows.position,
            MATCH: np.stack([*match, rows.candidate[:, 0]], 1),
            FIRST: rows.candidate,
        }
        for first, columns in wanted.items():
            columns = columns[:count].reshape(count, -1)
            found = self._facts(first.value, columns.shape[1])
            self._same(f"facts from {first.value} on", found, columns)

    def _compare_curves(self, depth: int) -> None:
        state, lanes = self._state, SPLICE_LANES.value
        self._close("neural", self._curves(NEURAL_AT.value, LONGEST_NEURAL + 1), state.neural)
        self._close("n-gram", self._curves(NGRAM_AT.value, LONGEST_NGRAM + 1), state.ngram)
        expected = state.splice_expected[:, None]
        self._close("expected of a splice", self._curves(EXPECTED_AT.value, 1), expected)
        if self.host.reads_drafts:
            spliced = state.splice[:, 1 : depth + 1, 1:]
            spliced = spliced * np.cumprod(spliced > 0, axis=2)  # behind a 0 nothing is meant
            found = self._curves(SPLICE_AT.value + lanes, depth * lanes)
            found = found.reshape(self.count, depth, lanes)[:, :, 1 : LONGEST_SPLICE + 1]
            self._close("splice", found, spliced)
            matching_tokens = state.matching_tokens[: self.count, None]
            self._same("matching_tokens", self._facts(MATCHING_TOKENS.value, 1), matching_tokens)
            least = state.least_confidence[: self.count]
            self._same("least", self._curves(LEAST_AT.value, 2), least)

    def _compare_choice(self, wanted: Lengths, found: Lengths, worth: np.ndarray) -> np.ndarray:
        """Which rows chose alike; the others, drafts that are worth the same up to last digits."""
        pairs, others = torch.stack(wanted, 1).numpy(), torch.stack(found, 1).cpu().numpy()
        same = (pairs == others).all(1)
        self.choices, self.other_choices = (
            self.choices + len(same),
            self.other_choices + (~same).sum(),
        )
        for row in np.flatnonzero(~same):
            ours, theirs = (self._worth(row, *each[row], worth) for each in (pairs, others))
            assert abs(ours - theirs) < CLOSE * LONGEST_SPLICE, (pairs[row], others[row])
        return same

    def _worth(self, row: int, neural: int, ngram: int, worth: np.ndarray) -> float:
        """What a draft of these lengths is worth by the host's curves, price paid."""
        state, price = self._state, self.price
        if neural == 0:
            return float((state.ngram[row, 1 : ngram + 1] - price).sum())
        spliced = worth[row, neural] if neural < self.cap else 0.0
        return float((state.neural[row, 1 : neural + 1] - price).sum() + spliced)

    def _same(self, what: str, found: torch.Tensor, wanted: np.ndarray) -> None:
        np.testing.assert_array_equal(found.cpu().numpy(), wanted, what)

    def _close(self, what: str, found: torch.Tensor, wanted: np.ndarray) -> None:
        theirs, ours = found[: self.count].cpu().numpy(), wanted[: self.count]
        assert theirs.shape == ours.shape, what
        np.testing.assert_array_equal(np.isnan(theirs), np.isnan(ours), what)
        far = np.nan_to_num(np.abs(theirs - ours) / np.maximum(np.abs(ours), 1.0)).max(initial=0.0)
        assert far < CLOSE, (what, far)
        self.largest = max(self.largest, far)


def stacked(
    drafts: list[tuple[torch.Tensor, torch.Tensor]], rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, forwards) tokens and (forwards, rows, 3) confidences of each forward's."""
    if not drafts:
        return torch.zeros((rows, 0), dtype=torch.int64), torch.zeros((0, rows, 3))
    tokens, confidences = zip(*drafts, strict=True)
    return torch.stack(tokens, 1), torch.stack(confidences)


def on_cpu(batch: Batch) -> Batch:
    return Batch(*(each.cpu() for each in batch))


def random_memory(rng: np.random.Generator, slots: int) -> tuple[AnswerIndex, Answers]:
    """Earlier answers on both sides, which came one by one."""
    index = empty_index()
    answers = Answers.of(index, slots, DEVICE)
    answers.owners.copy_(torch.from_numpy(rng.integers(0, OWNERS, slots).astype(np.int32)))
    for answer, owner in random_answers(rng, 3):
        head = int(index.words[HEAD])
        stored = index.add(answer, owner)
        if stored is not None:
            changed = index.changed(head, stored)
            words = torch.from_numpy(index.words[changed]).to(DEVICE)
            answers.write(torch.from_numpy(changed).to(DEVICE), words)
    return index, answers


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
def test_random_steps_are_those_of_the_host(
    forwards: int, evidence: bool, remembers: bool, longest: int
) -> None:
    rng = np.random.default_rng([forwards, evidence])
    recording = random_recording(forwards, "tokens")
    tables = TableMaker(recording, 0).make(np.ones(len(recording), np.bool_))
    model = random_model(forwards + 5, tables, evidence=evidence)
    engine = Engine(rng, 3, longest, 3, DEVICE)
    slots, index, answers = len(engine.known), None, None
    if remembers:
        index, answers = random_memory(rng, slots)
        np.testing.assert_array_equal(answers.words.cpu().numpy(), index.words)
    cap = max(forwards, int(rng.choice([3, 7, 48])))
    pair, copied = Pair(model, slots, cap, index, answers), 0
    for step in range(5):
        if step == 3:
            engine.replace(0)
            pair.enter(0)
        price = float(rng.choice([0.0, rng.uniform(0.01, 0.5)]))
        drafts = [engine.draft() for _ in range(forwards)]
        proposal = pair.step(engine.batch, drafts, price, rng.uniform(0.5, 1.15, 3))
        copied += int(proposal.from_answers.sum())
        engine.verify(proposal)
    assert remembers or not copied
    assert pair.other_choices <= pair.choices // 10


def test_steps_of_recorded_requests_are_those_of_the_host() -> None:
    rng = np.random.default_rng(4)
    policy = load_policy("reference-pair-cpu")
    recorded = Recorded(recorded_requests(6), DEVICE)
    pair = Pair(policy.model, 6, 12)
    for forwards in (0, 1, 2, 4):
        batch, drafts = recorded.state(rng, forwards)
        pair.enter(*range(6))
        price = float(rng.choice([0.0, 0.05, 0.3]))
        pair.step(batch, drafts, price, rng.uniform(0.7, 1.15, 3))
    assert pair.other_choices == 0
    print(f"{pair.choices} rows chose alike; largest difference {pair.largest:.1e}")  # pytest -s


def _a_power_of_two(head: str) -> float:
    if "gain" in head:
        return 0.0
    return 1.0 if "ngram" in head else 0.5


@pytest.mark.parametrize("evidence", [False, True])
def test_of_drafts_worth_the_same_both_choose_the_same(evidence: bool) -> None:
    """All that is expected is a power of two, so that neither rounds: that of copies is raised."""
    halves = Curves(np.empty(0), np.concatenate(([[1.0]], 0.5 ** np.arange(48)[None, :]), axis=1))
    model = Model(
        networks={
            name: constant_network([_a_power_of_two(head) for head in heads])
            for name, heads in HEADS.items()
            if evidence or name != "evidence"
        },
        curves=dict.fromkeys(("ngram", "neural", "splice"), halves),
        tables=no_tables(),
    )
    rng = np.random.default_rng(6)
    engine = Engine(rng, 3, 40, 2, DEVICE)
    pair = Pair(model, len(engine.known), 9)
    for price in (0.5, 0.125, 0.0625, 0.0, 1.0):
        drafts = [engine.draft() for _ in range(3)]
        proposal = pair.step(engine.batch, drafts, price, np.ones(3))
        engine.verify(proposal)
    assert pair.other_choices == 0
