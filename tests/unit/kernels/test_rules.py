"""A static rule on V2 drafts what the rule says, by the host's functions and by kernels alike."""

from __future__ import annotations

import numpy as np
import pytest
from engine import Engine
from interpreter import DEVICE, torch
from random_models import random_model
from test_steps import stacked

from adaspec.draft.match import AVAILABLE, LENGTH
from adaspec.kernels.batch import Batch
from adaspec.kernels.predictor import FusedPredictor
from adaspec.policy.spec import parse_policy
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.predict.tables import no_tables
from adaspec.vllm.session.predictor import HostPredictor
from adaspec.vllm.session.rule import RuleCurves

pytestmark = pytest.mark.slow
CAP = 12


def rule_of(spec: str) -> StaticRule:
    policy = parse_policy(spec)
    assert isinstance(policy, StaticPolicy)
    return policy.rule


def said(
    rule: StaticRule, row: int, host: HostPredictor, drafts: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[int, int]:
    """How many neural and copied tokens the rule drafts for a row, in plain words."""
    rows = host.planner.rows
    copies = rows.length[row] >= rule.min_match and rule.ngram_len > 0
    holds = rows.holds_neural[row] and bool(drafts)
    if rule.needs_matching_draft:
        copies &= holds and drafts[0][0][row] == rows.candidate[row][0]
    if copies:
        return 0, min(rule.ngram_len, rows.available[row], CAP)
    if not holds or rule.neural_len == 0:
        return 0, 0
    neural = 0
    for token_confidence in drafts:
        neural += 1
        if rule.least_percent and token_confidence[1][row][0] < np.log(rule.least_percent / 100):
            break
    behind = host.splice_matches[neural - 1, :, row]
    if behind[LENGTH] < rule.splice_match or neural >= CAP:
        return neural, 0
    return neural, min(rule.splice_len, behind[AVAILABLE], CAP - neural)


@pytest.mark.parametrize(
    "spec",
    [
        "none",
        "fixed:ngram:5:2",
        "fixed:neural:3",
        "hybrid:3:6:2",
        "hybrid-splice:3:8:2:1:5",
        "hybrid-agree:1:8:2:1:4",
        "hybrid-until:4:8:3:40:1:4",
    ],
)
def test_rows_draft_what_the_rule_says(spec: str) -> None:
    rng, rule = np.random.default_rng(len(spec)), rule_of(spec)
    engine = Engine(rng, 4, 60, 3, DEVICE)
    model = random_model(5, no_tables(), evidence=True)
    host = HostPredictor(model, len(engine.known), CAP)
    fused = FusedPredictor(model, len(engine.known), CAP, DEVICE, splits=2)
    drafted = 0
    settings = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    for _ in range(8):
        batch = engine.batch
        drafts = [engine.draft() for _ in range(rule.neural_len)]
        for token, _ in drafts:  # the drafter gives a token to every row that holds it
            holds = engine.holds[engine.slots]
            token[torch.from_numpy(holds) & (token < 0)] = 1
        proposals = []
        for inner, here in ((host, torch.device("cpu")), (fused, DEVICE)):
            predictor = RuleCurves(inner, rule, 8)
            there = Batch(*(each.to(here) for each in batch))
            step = predictor.begin(there, settings[0].to(here), settings[1:].to(here))
            tokens, confidences = stacked(drafts, len(engine.slots))
            predictor.revise(step, tokens.to(here), confidences.to(here))
            proposals.append(predictor.propose(step))
        ours, theirs = proposals
        for name in ("tokens", "survival"):
            found = getattr(theirs, name).cpu().numpy()
            np.testing.assert_array_equal(found, getattr(ours, name).numpy(), name)
        shown = [(token.numpy(), confidence.numpy()) for token, confidence in drafts]
        rows = range(len(engine.slots))
        wanted = [said(rule, row, host, shown) for row in rows]
        lengths = torch.stack(list(ours.lengths), 1).numpy()
        np.testing.assert_array_equal(lengths, wanted)
        np.testing.assert_array_equal(torch.stack(list(theirs.lengths), 1).cpu().numpy(), wanted)
        survival = ours.survival.numpy()
        assert (survival == (ours.tokens.numpy() >= 0)).all()
        drafted += lengths.sum()
        engine.verify(ours)
    assert (drafted > 0) == (spec != "none")
