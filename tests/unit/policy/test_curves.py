"""Survival curves are facts of a text: what is expected before drafting, and by each token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_model

from adaspec.cost.model import line
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import Pinned
from adaspec.policy.planner.state import (
    CORRECTED,
    LONGEST_NEURAL,
    NGRAM_EXPONENT,
    State,
    new_planner,
)
from adaspec.predict.features import CANDIDATE, TAIL, SpliceMatches
from adaspec.predict.model import ACCEPTED_NEXT, EVIDENCE_HEADS, NGRAM_AFTER

ROWS, CAP, FORWARDS = 4, 12, 3
SEEDS = st.integers(0, 1 << 32)


def planner(seed: int, *, reads_drafts: bool) -> Pinned:
    model = random_model(seed, evidence=reads_drafts)
    costs = line("any", 1.0, 0.1).constants()
    settings = {"reads_drafts": reads_drafts, "is_async": True}
    return Pinned(new_planner(model, costs, ROWS, CAP, LONGEST_NEURAL, **settings))


def take_in(pinned: Pinned, rng: np.random.Generator) -> None:
    """As many rows as there is room for, of any texts."""
    rows = pinned.value.rows
    pinned.value.run["rows"] = ROWS
    rows.slots[:] = np.arange(ROWS)
    rows.prompt_tokens[:], rows.position[:] = rng.integers(1, 40, (2, ROWS))
    rows.holds_neural[:] = rng.random(ROWS) < 0.8
    rows.length[:] = rng.integers(1, 33, ROWS) * (rng.random(ROWS) < 0.7)
    rows.available[:] = rng.integers(1, CAP + 2, ROWS) * (rows.length > 0)
    rows.start[:] = rng.integers(0, rows.prompt_tokens)
    rows.votes[:], rows.occurrences[:] = rng.integers(0, 9, (2, ROWS))
    rows.tail[:] = rng.integers(0, 3, (ROWS, TAIL))
    is_copied = np.arange(CANDIDATE) < rows.available[:, None]
    rows.candidate[:] = np.where(is_copied, rng.integers(0, 3, (ROWS, CANDIDATE)), -1)


def matches(rng: np.random.Generator) -> SpliceMatches:
    found = rng.integers(1, 9, (4, ROWS)) * (rng.random(ROWS) < 0.7)
    return SpliceMatches(*found.astype(np.int32), rng.integers(-1, 3, ROWS).astype(np.int32))


def drafted(rng: np.random.Generator) -> tuple[Any, Any]:
    """The tokens of some forwards, of which some are missing, and their confidences."""
    tokens = np.where(rng.random((ROWS, FORWARDS)) < 0.9, rng.integers(0, 3, (ROWS, FORWARDS)), -1)
    return tokens.astype(np.int32), -rng.random((ROWS, FORWARDS, 3)).astype(np.float32)


def copied(state: State) -> dict[str, Any]:
    splice = state.splice[:, :, 1:]
    splice = splice * np.cumprod(splice > 0, axis=-1)  # beyond a 0, none is read
    return {"neural": state.neural.copy(), "ngram": state.ngram.copy(), "splice": splice}


def decided(pinned: Pinned, rng: np.random.Generator) -> list[Any]:
    """A step as a price and a budget have it decided: lengths, and the survival of each token."""
    address, step = pinned.address, pinned.value.batch_state.step
    take_in(pinned, rng)
    step["price"], step["budget"] = rng.uniform(0, 0.4), rng.integers(0, ROWS * CAP)
    stages.expect(address)
    tokens, confidences = drafted(rng)
    if pinned.value.run["reads_drafts"][0]:
        for depth in range(1, FORWARDS + 1):
            stages.revise(address, depth, tokens, confidences, matches(rng))
    expected = list(copied(pinned.value.state).values())
    neural, ngram = np.zeros((2, ROWS), np.int32)
    if stages.choose(address, FORWARDS, neural, ngram):
        stages.splice(address, neural, matches(rng), ngram)
    return expected, neural, ngram


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.booleans(), st.integers(1, 3))
def test_what_is_expected_of_texts_hangs_on_nothing_of_the_steps_before(seed, reads_drafts, steps):
    fresh, used = (planner(seed % 8, reads_drafts=reads_drafts) for _ in range(2))
    others = np.random.default_rng([seed, 1])
    for _ in range(steps):
        _, neural, ngram = decided(used, others)
        emitted, accepted = others.integers(0, 9, (2, ROWS)).astype(np.int32)
        stages.learn(used.address, emitted, neural + ngram, neural, accepted, FORWARDS, 1.0)
        used.value.state.record["factor"] = others.uniform(0.5, 1.15, CORRECTED)
    (expected, *_), (found, *_) = (
        decided(each, np.random.default_rng(seed)) for each in (fresh, used)
    )
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.floats(0.3, 1.15), st.floats(0.3, 1.15))
def test_curves_are_corrected_in_proportion_and_no_further_than_to_certainty(seed, copies, drafts):
    pinned = planner(seed % 8, reads_drafts=True)
    state = pinned.value.state
    take_in(pinned, np.random.default_rng(seed))
    stages.expect(pinned.address)
    state.record["factor"] = copies, drafts
    before = copied(state)
    stages.wanted(pinned.address, FORWARDS, *np.zeros((2, ROWS), np.int32))
    for name, factor in (("ngram", copies), ("neural", drafts)):
        was, curve = before[name], getattr(state, name)
        first = np.minimum(was[:, 1] * factor, 1.0)
        np.testing.assert_allclose(curve[:, 1], first)
        np.testing.assert_allclose(curve[:, 1:] * was[:, 1:2], was[:, 1:] * first[:, None])
        assert (curve[:, 0] == 1.0).all()


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_a_drafted_token_says_how_likely_it_is_and_what_lies_behind_moves_in_proportion(seed):
    rng = np.random.default_rng(seed)
    pinned = planner(seed % 8, reads_drafts=True)
    rows, state = pinned.value.rows, pinned.value.state
    take_in(pinned, rng)
    stages.expect(pinned.address)
    tokens, confidences = drafted(rng)
    for depth in range(1, FORWARDS + 1):
        before = copied(state)
        stages.revise(pinned.address, depth, tokens, confidences, matches(rng))
        after = copied(state)
        holders = np.flatnonzero(rows.holds_neural)
        said = np.zeros((ROWS, len(EVIDENCE_HEADS)))
        said[holders] = state.evidence_predictions[: len(holders)]
        for row in range(ROWS):
            if not rows.holds_neural[row]:
                assert all((after[name][row] == before[name][row]).all() for name in before)
                continue
            curve, was = after["neural"][row], before["neural"][row]
            accepted = said[row, ACCEPTED_NEXT]
            is_possible = tokens[row, depth - 1] >= 0 and was[depth] > 0
            np.testing.assert_array_equal(curve[:depth], was[:depth])
            assert curve[depth] == pytest.approx(was[depth - 1] * accepted * is_possible)
            np.testing.assert_allclose(curve[depth:] * was[depth], was[depth:] * curve[depth])
            copy, was = after["ngram"][row], before["ngram"][row]
            first = said[row, NGRAM_AFTER] ** NGRAM_EXPONENT if rows.length[row] else 0.0
            assert copy[1] == pytest.approx(first)
            np.testing.assert_allclose(copy[1:] * was[1], was[1:] * copy[1])
            if depth > 1:
                spliced, was = after["splice"][row, depth - 1], before["splice"][row, depth - 1]
                np.testing.assert_allclose(spliced, was * (1 - accepted))
            for falling in (curve, copy):
                assert (np.diff(falling) <= 1e-12).all()
