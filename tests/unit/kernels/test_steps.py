"""Step by step, the kernels compute what the host's compiled functions do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine import Engine
from interpreter import DEVICE, torch
from random_models import random_model
from random_recordings import random_requests, recording_of

from adaspec.draft.match import IN_RING, MATCH_FIELDS, START
from adaspec.draft.ring import Ring
from adaspec.kernels.batch import Batch, Lengths, Proposal, RingOnDevice, Step
from adaspec.kernels.layout import (
    AVAILABLE,
    EXPECTED_AT,
    LEAST_AT,
    MATCH,
    MATCH_FACTS,
    MATCHING_TOKENS,
    NEURAL_AT,
    NGRAM_AT,
    SPLICE_AT,
    SPLICE_LANES,
    SPLICE_MATCHES,
)
from adaspec.kernels.predictor import FusedPredictor
from adaspec.kernels.tables import TableBuffers
from adaspec.policy.learned import load_policy
from adaspec.policy.planner.choose import weigh_splices
from adaspec.policy.planner.forwards import GAINS, MORE
from adaspec.policy.planner.state import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.policy.spec import parse_policy
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.predict.model import HEADS, Model
from adaspec.predict.network import constant_network
from adaspec.predict.survival import Curves
from adaspec.predict.tables import no_tables, packed
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request
from adaspec.train.token_tables import TableMaker
from adaspec.vllm.session.predictor import HostPredictor
from adaspec.vllm.session.rule import RuleCurves

pytestmark = pytest.mark.slow
TRACES = Path(__file__).resolve().parents[3] / "eval" / "traces" / "reference-pair"
Drafts = tuple[torch.Tensor, torch.Tensor]
"""(rows, forwards) tokens and (forwards, rows, 3) confidences."""
CLOSE = 1e-5
"""The host's networks compute in single precision, kernels in double."""


class Pair:
    """Takes both predictors through steps, and holds one to what the other says."""

    def __init__(
        self,
        model: Model,
        slots: int,
        cap: int,
        ring: Ring | None = None,
        there: RingOnDevice | None = None,
        rule: StaticRule | None = None,
    ) -> None:
        self.host = HostPredictor(model, slots, cap, ring)
        self._in_ring = there.readers.cpu().numpy() if there else np.zeros(slots, np.bool_)
        self.enter(*range(slots))
        self.fused = FusedPredictor(model, slots, cap, DEVICE, splits=2, ring=there)
        self._rules = [] if rule is None else [RuleCurves(rule, LONGEST_NEURAL) for _ in range(2)]
        self.gains = GAINS if rule is None else MORE
        self.cap, self.choices, self.other_choices = cap, 0, 0
        self._rng = np.random.default_rng(0)

    def enter(self, *slots: int) -> None:
        """Other requests take these slots."""
        self.host.enter(np.array(slots, np.int32), self._in_ring[[*slots]])

    def step(self, batch: Batch, drafts: Drafts, price: float) -> Proposal:
        """One step in which this is drafted; what the host proposes."""
        self.price, self.count = price, len(batch.slots)
        # Of what a rule is certain, nothing is corrected.
        factors = [1.0, 1.0] if self._rules else self._rng.uniform(0.3, 1.15, 2).tolist()
        settings = torch.tensor([price, *factors], dtype=torch.float64)
        ours = self.host.begin(Batch(*(each.cpu() for each in batch)), settings)
        theirs = self.fused.begin(batch, settings.to(DEVICE))
        self._obey("begin", ours, theirs)
        for name in ("context_tokens", "decides", "holds", "emitted"):
            self._same(name, getattr(theirs, name), getattr(ours, name).numpy())
        rows = self.host.planner.rows
        available = self._facts(MATCH.value + AVAILABLE.value, 1)
        self._same("available", available, rows.available[: self.count, None])
        self._compare_curves(0)
        tokens, confidences = drafts
        self.host.revise(ours, tokens, confidences)
        self.fused.revise(theirs, tokens.to(DEVICE), confidences.to(DEVICE))
        self._obey("revise", ours, theirs)
        for depth in range(1, len(confidences) + 1):
            behind = self._facts(
                SPLICE_MATCHES.value + (depth - 1) * MATCH_FACTS.value, MATCH_FIELDS
            )
            self._same(
                "match behind", behind, self.host.splice_matches[depth - 1, :, : self.count].T
            )
        self._compare_curves(len(confidences))
        wanted, found = self.host.propose(ours), self.fused.propose(theirs)
        same = self._compare_choice(wanted.lengths, found.lengths, len(confidences))
        ours, theirs = wanted.neural_gain.numpy(), found.neural_gain
        # What a rule would draft by one more forward, its predictor does not know.
        self._close("gain", theirs[:, : self.gains], ours[:, : self.gains])
        self._close("survival", found.survival[same], wanted.survival[same].numpy())
        self._same("tokens", found.tokens[same], wanted.tokens[same].numpy())
        return wanted

    def _obey(self, stage: str, ours: Step, theirs: Step) -> None:
        """Where there is a rule, have both expect what it drafts."""
        both = (self.host, ours), (self.fused, theirs)
        for curves, (predictor, step) in zip(self._rules, both, strict=False):
            getattr(curves, stage)(step, predictor.expected(self.count))

    @property
    def _state(self):
        return self.host.planner.state

    def _facts(self, first: int, columns: int) -> torch.Tensor:
        return self.fused.rows.facts[: self.count, first : first + columns]

    def _curves(self, first: int, columns: int) -> torch.Tensor:
        return self.fused.rows.curves[: self.count, first : first + columns]

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

    def _compare_choice(self, wanted: Lengths, found: Lengths, forwards: int) -> np.ndarray:
        """Which rows chose alike; the others, sources that are worth the same up to last digits."""
        pairs, others = torch.stack(wanted, 1).numpy(), torch.stack(found, 1).cpu().numpy()
        same = (pairs == others).all(1)
        self.choices += len(same)
        self.other_choices += (~same).sum()
        for row in np.flatnonzero(~same):
            both = pairs[row, 0], others[row, 0]
            assert both[0] != both[1], (pairs[row], others[row])
            for price in (self.price, 0.0):
                ours, theirs = (self._worth(row, neural, forwards, price) for neural in both)
                assert abs(ours - theirs) < CLOSE * LONGEST_SPLICE, (pairs[row], others[row])
                if ours > 0:
                    break  # where nothing is worth the price, all that is drafted is for free
        return same

    def _worth(self, row: int, neural: int, forwards: int, price: float) -> float:
        """What so many neural tokens are worth with their splice, or a copy, by the host's curves.

        That is 0 where they are not worth the price.
        """
        state = self._state
        if neural == 0:
            most = min(self.host.planner.rows.available[row], self.cap)
            gains = state.ngram[row, 1 : most + 1] - price
            return float(gains[np.cumprod(gains >= 0) > 0].sum())
        weigh_splices(state, row, forwards if self.host.reads_drafts else 0, price)
        spliced = state.splice_value[row, neural]
        own = (state.neural[row, 1 : neural + 1] - price).sum()
        return max(float(own + (spliced if neural < self.cap else 0.0)), 0.0)

    def _same(self, what: str, found: torch.Tensor, wanted: np.ndarray) -> None:
        np.testing.assert_array_equal(found.cpu().numpy(), wanted, what)

    def _close(self, what: str, found: torch.Tensor, wanted: np.ndarray) -> None:
        theirs, ours = found[: self.count].cpu().numpy(), wanted[: self.count]
        assert theirs.shape == ours.shape, what
        np.testing.assert_array_equal(np.isnan(theirs), np.isnan(ours), what)
        far = np.nan_to_num(np.abs(theirs - ours) / np.maximum(np.abs(ours), 1.0)).max(initial=0.0)
        assert far < CLOSE, (what, far)


def random_ring(rng: np.random.Generator, engine: Engine) -> tuple[Ring, RingOnDevice]:
    """Ended answers on both sides: some say what texts end with, and they fill the room twice."""
    ring, known = Ring(1_100), engine.context_tokens
    there = RingOnDevice.empty(ring.capacity, len(known), DEVICE)
    there.readers.copy_(torch.from_numpy(rng.random(len(known)) < 0.8))
    for _ in range(120):
        answer = rng.integers(0, 3, rng.integers(1, 60)).astype(np.int32)
        slot = rng.integers(len(known))
        end = engine.tokens[slot, : known[slot]][-rng.integers(1, 50) :]
        ring.append(np.append(end, answer) if rng.random() < 0.5 else answer)
    assert ring.moves
    there.write(0, torch.from_numpy(ring.tokens), torch.tensor([len(ring.tokens)]))
    return ring, there


@pytest.mark.parametrize(
    ("forwards", "evidence", "has_ring", "longest"),
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
    forwards: int, evidence: bool, has_ring: bool, longest: int
) -> None:
    rng = np.random.default_rng([forwards, evidence])
    recording = recording_of(random_requests(forwards, 6, tokens=True))
    tables = TableMaker(recording, 0).make(np.ones(len(recording), np.bool_))
    model = random_model(forwards + 5, tables, evidence=evidence)
    engine = Engine(rng, 3, longest, 3, DEVICE)
    slots = len(engine.context_tokens)
    ring, there = random_ring(rng, engine) if has_ring else (None, None)
    cap = max(forwards, int(rng.choice([3, 7, 48])))
    pair, copied = Pair(model, slots, cap, ring, there), 0
    for step in range(5):
        if step == 3:
            engine.replace(0)
            pair.enter(0)
        price = float(rng.choice([0.0, rng.uniform(0.01, 0.5)]))
        proposal = pair.step(engine.batch, engine.draft(forwards), price)
        rows = pair.host.planner.rows.start[: pair.count]
        copied += int(
            (rows >= IN_RING).sum() + (pair.host.splice_matches[:, START] >= IN_RING).sum()
        )
        engine.verify(proposal)
    assert (copied > 0) == has_ring
    assert pair.other_choices <= pair.choices // 10


def recorded_state(
    requests: list[Request], rng: np.random.Generator, forwards: int
) -> tuple[Batch, Drafts]:
    """A batch in which each request has come somewhere, and what was drafted there."""
    places = [int(rng.integers(1, len(each.output_tokens))) for each in requests]
    texts = [np.concatenate((each.prompt_tokens, each.output_tokens)) for each in requests]
    prompts = torch.tensor([len(each.prompt_tokens) for each in requests], dtype=torch.int32)
    ones = torch.ones(len(places), dtype=torch.int32)
    batch = Batch(
        slots=torch.arange(len(places)),
        tokens=torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, texts)), True),
        context_tokens=prompts + torch.tensor(places, dtype=torch.int32),
        prompt_tokens=prompts,
        holds_neural=ones > 0,
        sampled=ones,
        rejected=0 * ones,
    )
    here = list(zip(requests, places, strict=True))
    tokens = np.stack([each.drafted_tokens[at, :forwards] for each, at in here])
    confidences = np.stack([each.confidences[at, :forwards] for each, at in here], axis=1)
    drafts = torch.from_numpy(tokens), torch.from_numpy(confidences.astype(np.float32))
    return Batch(*(each.to(DEVICE) for each in batch)), drafts


def test_steps_of_recorded_requests_are_those_of_the_host() -> None:
    if not TRACES.is_dir():
        pytest.skip(f"no recorded traces at {TRACES}")
    requests = [each for each in TraceReader(TRACES).requests() if len(each.output_tokens) > 1]
    some = [requests[at] for at in np.random.default_rng(8).permutation(len(requests))[:6]]
    rng = np.random.default_rng(4)
    pair = Pair(load_policy("reference-pair-cpu").model, 6, 12)
    for forwards in (0, 1, 2, 4):
        pair.enter(*range(6))
        price = float(rng.choice([0.0, 0.05, 0.3]))
        pair.step(*recorded_state(some, rng, forwards), price)
    assert pair.other_choices == 0


@pytest.mark.parametrize(
    "spec",
    [
        "none",
        "fixed:ngram:5:2",
        "fixed:neural:3",
        "hybrid:3:6:2",
        "hybrid-splice:3:8:2:1:5",
        "trtllm:3",
    ],
)
def test_steps_by_a_static_rule_are_those_of_the_host_and_certain(spec: str) -> None:
    rng, policy = np.random.default_rng(len(spec)), parse_policy(spec)
    assert isinstance(policy, StaticPolicy)
    engine = Engine(rng, 4, 60, 3, DEVICE)
    model = random_model(5, evidence=True)
    pair, drafted = Pair(model, len(engine.context_tokens), 12, rule=policy.rule), 0
    for _ in range(8):
        drafts = engine.draft(policy.rule.neural_len, lost=0.0)
        proposal = pair.step(engine.batch, drafts, 0.0)
        assert torch.equal(proposal.survival, (proposal.tokens >= 0).to(proposal.survival))
        drafted += int(sum(proposal.lengths).sum())
        engine.verify(proposal)
    assert pair.other_choices == 0
    assert (drafted > 0) == (spec != "none")


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
    pair = Pair(model, len(engine.context_tokens), 9)
    for price in (0.5, 0.125, 0.0625, 0.0, 1.0):
        proposal = pair.step(engine.batch, engine.draft(3), price)
        engine.verify(proposal)
    assert pair.other_choices == 0


def test_a_key_at_the_end_of_a_long_run_of_full_slots_is_reached() -> None:
    # Hashes whose first choices are the same slot: the last of them lies as many slots on.
    keys = (np.arange(1, 60, dtype=np.uint64) << np.uint64(20)) | np.uint64(0x3FF)
    means = np.linspace(0, 1, len(keys)).astype(np.float32)
    tables = packed(keys, means, means, means, (0, 0, 0, 0), 1)
    assert TableBuffers.of(tables, torch.device("cpu")).probes.value == 64
