import numpy as np
import pytest
from checkout import CHECKOUT, need
from engine import Engine
from interpreter import DEVICE, torch
from random_models import random_model
from random_recordings import ONE_OF_EACH, random_requests, recording_of

from adaspec.draft.matches import IN_RING, Ring
from adaspec.kernels.batch import Batch, Lengths, RingOnDevice
from adaspec.kernels.model import TableBuffers
from adaspec.kernels.predictor import FusedPredictor
from adaspec.policy.protocol import load_policy
from adaspec.policy.static import StaticPolicy, parse_policy
from adaspec.predict.model import (
    HEADS,
    Model,
)
from adaspec.predict.network import BinnedCurves, constant_network
from adaspec.predict.tables import make_tables, no_tables
from adaspec.trace.reader import TraceReader
from adaspec.train.rows import TableMaker
from adaspec.vllm.session.drafting import HostPredictor

pytestmark = pytest.mark.slow
CLOSE = 1e-5
"""The host's networks compute in single precision, kernels in double."""


class Pair:
    """Takes both predictors through steps, and holds one to what the other says."""

    def __init__(self, model, slots, cap, ring=None, there=None, rule=None):
        self.host = HostPredictor(model, slots, cap, ring)
        self._in_ring = there.readers.cpu().numpy() if there else np.zeros(slots, np.bool_)
        self.enter(*range(slots))
        self.fused = FusedPredictor(model, slots, cap, DEVICE, splits=2, ring=there)
        self.cap, self._rule = cap, rule
        self._rng = np.random.default_rng(0)

    def enter(self, *slots):
        self.host.enter(np.array(slots, np.int32), self._in_ring[[*slots]])

    def step(self, batch, drafts, price):
        """One step in which this is drafted; what the host proposes."""
        factors = self._rng.uniform(0.3, 1.15, 3).tolist()
        settings = torch.tensor([price, *factors], dtype=torch.float64)
        ours = self.host.begin(Batch(*(each.cpu() for each in batch)), settings)
        theirs = self.fused.begin(batch, settings.to(DEVICE))
        for name in ("context_tokens", "decides", "holds", "emitted"):
            self._same(name, getattr(theirs, name), getattr(ours, name).numpy())
        tokens, confidences = drafts
        self.host.revise(ours, tokens, confidences)
        self.fused.revise(theirs, tokens.to(DEVICE), confidences.to(DEVICE))
        lengths = [self._by_rule(*each) for each in ((self.host, ours), (self.fused, theirs))]
        wanted, found = self.host.propose(ours, lengths[0]), self.fused.propose(theirs, lengths[1])
        for name, theirs, ours in zip(Lengths._fields, found.lengths, wanted.lengths, strict=True):
            self._same(name, theirs, ours.numpy())
        if self._rule is None:
            self._close("gain", found.gain, wanted.gain.numpy())
        self._close("survival", found.survival, wanted.survival.numpy())
        self._same("tokens", found.tokens, wanted.tokens.numpy())
        return wanted

    def _by_rule(self, predictor, step):
        if self._rule is None:
            return None
        matched = predictor.matches(step, self._rule.neural_len)
        lengths = self._rule.lengths(self.cap, step.holds, *matched)
        return Lengths(*(each.long() for each in lengths))

    def _same(self, what, found, wanted):
        np.testing.assert_array_equal(found.cpu().numpy(), wanted, what)

    def _close(self, what, found, wanted):
        np.testing.assert_allclose(found.cpu().numpy(), wanted, CLOSE, CLOSE, err_msg=what)


def random_ring(rng, engine):
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
def test_random_steps_are_those_of_the_host(forwards, evidence, has_ring, longest):
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


def recorded_state(requests, rng, forwards):
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


def test_steps_of_recorded_requests_are_those_of_the_host():
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


@pytest.mark.parametrize("spec", ONE_OF_EACH)
def test_steps_by_a_static_rule_are_those_of_the_host_and_certain(spec):
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
    assert (drafted > 0) == (spec != "none")


def _a_power_of_two(head):
    if "gain" in head:
        return 0.0
    return 1.0 if "ngram" in head else 0.5


@pytest.mark.parametrize("evidence", [False, True])
def test_of_drafts_worth_the_same_both_choose_the_same(evidence):
    """All that is expected is a power of two, so that neither rounds: that of copies is raised."""
    halves = BinnedCurves(
        np.empty(0), np.concatenate(([[1.0]], 0.5 ** np.arange(48)[None, :]), axis=1)
    )
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


def test_a_key_at_the_end_of_a_long_run_of_full_slots_is_reached():
    # Hashes whose first choices are the same slot: the last of them lies as many slots on.
    keys = (np.arange(1, 60, dtype=np.uint64) << np.uint64(20)) | np.uint64(0x3FF)
    means = np.linspace(0, 1, len(keys)).astype(np.float32)
    tables = make_tables(keys, means, means, means, np.zeros(4), 1)
    assert TableBuffers.of(tables, torch.device("cpu")).probes.value == 64


def test_who_enters_waits_for_no_copy_to_the_device(monkeypatch):
    slots, known = np.arange(3, dtype=np.int32), np.array([True, False, True])
    there = RingOnDevice.empty(64, 3, DEVICE)
    predictor = FusedPredictor(random_model(1, evidence=True), 3, 5, DEVICE, ring=there)
    # A copy from memory that is not pinned waits, whatever it is asked.
    monkeypatch.setattr(torch.Tensor, "to", lambda *_, **__: pytest.fail("a copy that waits"))
    predictor.enter(slots, known)
    assert there.readers.tolist() == known.tolist()
