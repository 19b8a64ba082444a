"""A policy that meddles with what it is handed changes nothing."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from own_rival import OwnRival
from random_recordings import random_cost, random_requests, recording_of

from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Batch, Policy, Proposal, Setup, StepResult
from adaspec.replay.loop import run_policy

COST = random_cost(np.random.default_rng(7))


def reachable(thing: object, seen: dict[int, object], depth: int = 6) -> Iterator[np.ndarray]:
    """Arrays that can be had from public attributes, views' bases included."""
    if id(thing) in seen or depth == 0 or isinstance(thing, (str, bytes, type)) or thing is None:
        return
    seen[id(thing)] = thing
    if isinstance(thing, np.ndarray):
        yield thing
        yield from reachable(thing.base, seen, depth - 1)
        return
    if isinstance(thing, (list, tuple)):
        for part in thing:
            yield from reachable(part, seen, depth - 1)
        return
    if type(thing).__module__.startswith("adaspec"):
        for name in dir(thing):
            if not name.startswith("_"):
                yield from reachable(getattr(thing, name), seen, depth - 1)


def scribble(*things: object) -> None:
    for array in reachable(list(things), {}):
        if array.flags.writeable and array.size:
            array[...] = True if array.dtype.kind == "b" else 3


def copied(facts: Any) -> Any:
    """The same facts in arrays of their own."""
    held = {each.name: getattr(facts, each.name) for each in fields(facts) if each.init}
    return replace(
        facts, **{name: v.copy() for name, v in held.items() if isinstance(v, np.ndarray)}
    )


class Splicing(BasePolicy):
    """Copies where the match has two tokens, else drafts two and splices if they are shown."""

    name = "splicing"

    def start(self, setup: Setup) -> None:
        self._setup = setup

    def forwards(self, batch: Batch) -> int:
        return 2 if (batch.holds_neural & (batch.matches.length < 2)).any() else 0

    def decide(self, batch: Batch) -> Proposal:
        copies = batch.matches.length >= 2
        neural = np.where(batch.holds_neural & ~copies, batch.drafts.count, 0)
        ngram = np.where(copies, 4, 0)
        if self._setup.shows_tokens:
            ngram[batch.drafts.splice_match(neural).length > 0] = 3
        return Proposal(neural, ngram)


class Vandal(BasePolicy):
    """Decides honestly on copies, then writes into everything that it was handed."""

    def __init__(self, honest: Policy) -> None:
        self.honest, self.deciding = honest, getattr(honest, "deciding", None)

    def start(self, setup: Setup) -> None:
        self.setup = setup
        self.honest.start(setup)

    def forwards(self, batch: Batch) -> int:
        self.batch = replace(copied(batch), matches=copied(batch.matches))
        self.batch.drafts = copied(batch.drafts)
        forwards = self.honest.forwards(self.batch)
        self.spoil(batch)
        return forwards

    def decide(self, batch: Batch) -> Proposal:
        drafts, self.batch.drafts = batch.drafts, copied(batch.drafts)
        self.proposal = self.honest.decide(self.batch)
        proposal = replace(self.proposal)
        self.spoil(batch)
        if drafts.count and self.setup.shows_tokens:
            match = drafts.splice_match(self.proposal.neural_len)
            scribble(match)
            match.start[:] = batch.prompt_tokens + batch.position
        drafts.count = 0
        return proposal

    def learn(self, report: StepResult) -> None:
        self.honest.learn(replace(copied(report), batch=self.batch, proposal=self.proposal))
        scribble(report)

    def spoil(self, batch: Batch) -> None:
        scribble(batch)
        batch.matches.start[:] = batch.prompt_tokens + batch.position
        batch.matches.available[:] = 99
        scribble(batch.context.tail(3), batch.context.candidate(3))


@pytest.mark.parametrize("tokens", [False, True], ids=["without tokens", "with tokens"])
@pytest.mark.parametrize("policy", [Splicing(), OwnRival("budget:4")], ids=["splicing", "budget"])
def test_a_policy_that_writes_into_what_it_is_handed_changes_nothing(policy, tokens):
    for seed in range(8):
        recording = recording_of(random_requests(seed, 6, tokens=tokens), seed=seed)
        order = np.array([0, 1, 2, 3, 4, 5, 0, 1], np.int32)
        honest = run_policy(recording, policy, order, 3, COST, 9)
        vandal = run_policy(recording, Vandal(policy), order, 3, COST, 9)
        arrays = {name: getattr(honest, name) for name in ("token_s", "request_s")}
        assert replace(vandal, **arrays) == replace(honest, **arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(getattr(vandal, name), array)
