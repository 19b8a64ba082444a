"""Another future changes nothing that the learned policy saw or chose before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from crooked import Honest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_policy
from random_recordings import NEURAL_CAP, random_cost, random_requests, recording_of
from reference import Request, common

from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Batch, Drafts, Proposal, Setup
from adaspec.replay.loop import run_policy
from adaspec.train.token_tables import TableMaker


class Witness(Honest):
    """Passes everything on to a learned policy, and keeps what it saw and chose by position."""

    def __init__(self, policy: LearnedPolicy) -> None:
        super().__init__(policy)
        self.log: list[tuple[int, object]] = []

    def start(self, setup: Setup) -> None:
        super().start(setup)
        self.memory = self.honest.planner.memory

    def plan(self, batch: Batch) -> int:
        most = super().plan(batch)
        memory = self.memory
        curves = memory.neural[0], memory.ngram[0], memory.splice_expected
        self.note(batch, most, memory.features[0], memory.history[0], *curves)
        return most

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        more = super().proceed(batch, drafts)
        self.note(batch, more, self.memory.evidence_features[0] if self.honest.reads_drafts else 0)
        return more

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        found = super().settle(batch, drafts)
        self.note(batch, found.neural_len)
        if not self.setup.shows_tokens:
            # Without drafted tokens true ones stand in behind them: a splice's length may hang on
            # those, and what it costs with it.
            return replace(found, ngram_len=np.where(found.neural_len > 0, 0, found.ngram_len))
        self.note(batch, found.ngram_len, self.memory.splice_features[0])
        return found

    def note(self, batch: Batch, *values: object) -> None:
        kept = tuple(np.asarray(value).astype(np.float64).tobytes() for value in values)
        self.log.append((int(batch.position[0]), kept))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_another_future_changes_no_feature_and_no_choice_before_it(
    seed: int, tokens: bool, confidences: bool
) -> None:
    rng = np.random.default_rng(seed)
    first = random_requests(seed, 1, tokens=tokens, output_tokens=(14, 30))[0]
    now = int(rng.integers(1, len(first.output) - 1))
    future = rng.permutation(first.output[now:]).tolist()
    output = first.output[:now] + future
    accepted = list(first.accepted)
    drafted = probability = None
    if first.drafted is not None:
        # The drafts up to now are held; those behind may be anything.
        fresh = random_requests(seed + 1, 1, tokens=True, output_tokens=(len(output), len(output)))[
            0
        ]
        assert fresh.drafted is not None
        assert first.probability is not None
        assert fresh.probability is not None
        drafted = first.drafted[: now + 1] + fresh.drafted[now + 1 :]
        probability = first.probability[: now + 1] + fresh.probability[now + 1 :]
        accepted = [common(d, output[p:]) for p, d in enumerate(drafted)]
        before = [common(d, first.output[p:]) for p, d in enumerate(first.drafted)]
    else:
        before = list(accepted)
    others = random_requests(seed, 4, tokens=tokens)
    shown = seed if tokens and confidences else None
    tables = TableMaker(recording_of(others, seed=shown), 0).make(np.ones(4, np.bool_))
    policy = random_policy(rng, tables, evidence=tokens, cap=20, neural_cap=NEURAL_CAP)
    cost = random_cost(rng)
    logs = []
    for request in (
        replace(first, accepted=before),
        Request(first.prompt, output, accepted, drafted, probability),
    ):
        witness = Witness(policy)
        run_policy(recording_of([request], seed=shown), witness, np.zeros(1, np.int32), 1, cost, 9)
        logs.append([entry for entry in witness.log if entry[0] <= now])
    # A step that reaches beyond `now` may end elsewhere; up to it all is the same.
    kept = min(map(len, logs))
    assert kept > 0
    assert logs[0][:kept] == logs[1][:kept]
