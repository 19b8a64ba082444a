"""Step by step, the kernels compute what the host's compiled functions do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from checkout import CHECKOUT, need
from engine import Engine
from interpreter import DEVICE, torch
from random_models import random_model
from random_recordings import random_requests, recording_of

from adaspec.draft.chains import IN_RING, MATCH_FIELDS
from adaspec.draft.ring import Ring
from adaspec.kernels import layout
from adaspec.kernels.batch import Batch, Lengths, Proposal, RingOnDevice, Step
from adaspec.kernels.predictor import FusedPredictor
from adaspec.kernels.tables import TableBuffers
from adaspec.policy import choice
from adaspec.policy.learned import load_policy
from adaspec.policy.spec import parse_policy
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.predict.model import (
    HEADS,
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    Model,
)
from adaspec.predict.network import constant_network
from adaspec.predict.survival import Curves as Shapes
from adaspec.predict.tables import make_tables, no_tables
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request
from adaspec.train.token_tables import TableMaker
from adaspec.vllm.session.predictor import HostPredictor

pytestmark = pytest.mark.slow
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
        self._model, self._rule = model, rule
        self.cap, self.choices, self.other_choices = cap, 0, 0
        self._rng = np.random.default_rng(0)

    def enter(self, *slots: int) -> None:
        """Other requests take these slots."""
        self.host.enter(np.array(slots, np.int32), self._in_ring[[*slots]])

    def step(self, batch: Batch, drafts: Drafts, price: float) -> Proposal:
        """One step in which this is drafted; what the host proposes."""
        self.price, self.count = price, len(batch.slots)
        factors = self._rng.uniform(0.3, 1.15, 3).tolist()
        settings = torch.tensor([price, *factors], dtype=torch.float64)
        ours = self.host.begin(Batch(*(each.cpu() for each in batch)), settings)
        theirs = self.fused.begin(batch, settings.to(DEVICE))
        for name in ("context_tokens", "decides", "holds", "emitted"):
            self._same(name, getattr(theirs, name), getattr(ours, name).numpy())
        available = self._facts(layout.MATCH.value + layout.AVAILABLE.value, 1)
        self._same("available", available, self.host.rows.match.available[:, None])
        self._compare_curves(ours)
        tokens, confidences = drafts
        self.host.revise(ours, tokens, confidences)
        self.fused.revise(theirs, tokens.to(DEVICE), confidences.to(DEVICE))
        for depth in range(len(confidences)):
            place = layout.SPLICE_MATCHES.value + depth * layout.MATCH_FACTS.value
            behind, match = self._facts(place, MATCH_FIELDS), self.host.shown.match
            facts = (getattr(match, each.name)[:, depth] for each in dataclasses.fields(match))
            self._same("match behind", behind, np.stack(list(facts), axis=1))
        self._compare_curves(ours)
        lengths = [self._by_rule(*each) for each in ((self.host, ours), (self.fused, theirs))]
        wanted, found = self.host.propose(ours, lengths[0]), self.fused.propose(theirs, lengths[1])
        same = self._compare_choice(wanted.lengths, found.lengths, ours)
        if self._rule is None:
            self._close("gain", found.gain, wanted.gain.numpy())
        self._close("survival", found.survival[same], wanted.survival[same].numpy())
        self._same("tokens", found.tokens[same], wanted.tokens[same].numpy())
        return wanted

    def _by_rule(self, predictor: HostPredictor | FusedPredictor, step: Step) -> Lengths | None:
        """What the rule drafts, if there is one."""
        if self._rule is None:
            return None
        matched = predictor.matches(step, self._rule.neural_len)
        lengths = self._rule.lengths(self.cap, step.holds, *matched)
        return Lengths(*(each.long() for each in lengths))

    def _facts(self, first: int, columns: int) -> torch.Tensor:
        return self.fused.rows.facts[: self.count, first : first + columns]

    def _curves(self, first: int, columns: int) -> torch.Tensor:
        return self.fused.rows.curves[: self.count, first : first + columns]

    def _host_curves(self, row: int, step: Step) -> choice.Curves:
        """A row's curves as they are before they are corrected."""
        of, curves = np.zeros(1, choice.ROW), choice.new_curves()
        of["holds_neural"] = step.holds[row].item()
        forwards = step.forwards
        known = forwards if self.host.reads_drafts else 0
        said, shapes = self.host.predictions[row], choice.shapes_of(self._model)
        choice.fill_curves(of[0], said, shapes, forwards, known, self.cap, curves)
        return curves

    def _compare_curves(self, step: Step) -> None:
        lanes, depth = layout.SPLICE_LANES.value, step.forwards
        rows = [self._host_curves(row, step) for row in range(self.count)]
        neural, ngram, splice = (
            np.stack([getattr(each, name) for each in rows])
            for name in ("neural", "ngram", "splice")
        )
        self._close(
            "neural", self._curves(layout.NEURAL_AT.value + 1, LONGEST_NEURAL), neural[:, 1:]
        )
        self._close("n-gram", self._curves(layout.NGRAM_AT.value + 1, LONGEST_NGRAM), ngram[:, 1:])
        expected = self.host.predictions["splice_gain"][:, None]
        self._close("expected of a splice", self._curves(layout.EXPECTED_AT.value, 1), expected)
        if self.host.reads_drafts:
            found = self._curves(layout.SPLICE_AT.value + lanes, depth * lanes)
            found = found.reshape(self.count, depth, lanes)[:, :, 1 : LONGEST_SPLICE + 1]
            self._close("splice", found, splice[:, 1 : depth + 1, 1:])

    def _compare_choice(self, wanted: Lengths, found: Lengths, step: Step) -> np.ndarray:
        """Which rows chose alike; the others, sources that are worth the same up to last digits."""
        pairs, others = torch.stack(wanted, 1).numpy(), torch.stack(found, 1).cpu().numpy()
        same = (pairs == others).all(1)
        self.choices += len(same)
        self.other_choices += (~same).sum()
        for row in np.flatnonzero(~same):
            both = pairs[row, 0], others[row, 0]
            assert both[0] != both[1], (pairs[row], others[row])
            for price in (self.price, 0.0):
                ours, theirs = (self._worth(row, neural, step, price) for neural in both)
                assert abs(ours - theirs) < CLOSE * LONGEST_SPLICE, (pairs[row], others[row])
                if ours > 0:
                    break  # where nothing is worth the price, all that is drafted is for free
        return same

    def _worth(self, row: int, neural: int, step: Step, price: float) -> float:
        """What so many neural tokens are worth with their splice, or a copy, by the host's curves.

        That is 0 where they are not worth the price.
        """
        settings, curves = step.settings.numpy(), self._host_curves(row, step)
        choice.correct(curves, settings)
        if neural == 0:
            most = min(self.host.rows.match.available[row], self.cap)
            gains = curves.ngram[1 : most + 1] - price
            return float(gains[np.cumprod(gains >= 0) > 0].sum())
        gain = float(self.host.predictions["splice_gain"][row]) * settings[choice.SPLICE]
        choice.weigh_splices(curves, gain, step.forwards if self.host.reads_drafts else 0, price)
        own = (curves.neural[1 : neural + 1] - price).sum()
        return max(float(own + (curves.splice_value[neural] if neural < self.cap else 0.0)), 0.0)

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
    there.tokens[: len(ring.tokens)].copy_(torch.from_numpy(ring.tokens))
    there.known.fill_(len(ring.tokens))
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
        starts = pair.host.rows.match.start, pair.host.shown.match.start
        copied += int(sum((each >= IN_RING).sum() for each in starts))
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
    need("eval")
    traces = CHECKOUT / "eval" / "traces" / "reference-pair"
    requests = [each for each in TraceReader(traces).requests() if len(each.output_tokens) > 1]
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
    halves = Shapes(np.empty(0), np.concatenate(([[1.0]], 0.5 ** np.arange(48)[None, :]), axis=1))
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
    tables = make_tables(keys, means, means, means, np.zeros(4), 1)
    assert TableBuffers.of(tables, torch.device("cpu")).probes.value == 64


def test_who_enters_waits_for_no_copy_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    slots, known = np.arange(3, dtype=np.int32), np.array([True, False, True])
    there = RingOnDevice.empty(64, 3, DEVICE)
    predictor = FusedPredictor(random_model(1, evidence=True), 3, 5, DEVICE, ring=there)
    # A copy from memory that is not pinned waits, whatever it is asked.
    monkeypatch.setattr(torch.Tensor, "to", lambda *_, **__: pytest.fail("a copy that waits"))
    predictor.enter(slots, known)
    assert there.readers.tolist() == known.tolist()
