"""A policy that mixes sources and splices at random, within the rules of the replay."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.protocol import Batch, Drafts, Proposal, Setup, StepResult

Ints = NDArray[np.int32]


class WildPolicy:
    """Every choice is drawn from a hash of the seed and of all that the policy has been shown.

    So two runs decide alike exactly as long as they are shown the same; `decisions` keeps what was
    decided, by how many tokens were known.
    """

    def __init__(self, seed: int, *, elsewhere: bool = False) -> None:
        self.name = "wild"
        self._seed, self._elsewhere = seed, elsewhere
        self.start_state()

    def start_state(self) -> None:
        self._hash = hashlib.blake2b(str(self._seed).encode())
        self.decisions: list[tuple[int, object]] = []

    def start(self, setup: Setup) -> None:
        self.start_state()
        self._setup = setup
        self._see(setup.cap, setup.neural_cap, setup.slots)

    def holds_drafter(self, load: int) -> bool:
        self._see(load)
        return bool(self._rng().random() < 0.9)

    def forwards(self, batch: Batch) -> int:
        self._see_batch(batch)
        most = self._setup.neural_cap if batch.holds_neural.any() else 0
        planned = int(self._rng().integers(0, most + 1))
        self.decisions.append((int(batch.position[0]), planned))
        return planned

    def decide(self, batch: Batch) -> Proposal:
        rng, drafts = self._rng(), batch.drafts
        self._see(drafts.count, drafts.tokens, drafts.confidences)
        rows, cap = len(batch), self._setup.cap
        most = np.where(batch.holds_neural, drafts.count, 0)
        neural = np.minimum(rng.integers(0, drafts.count + 1, rows), most).astype(np.int32)
        if self._setup.shows_tokens:
            self._see_matches(drafts, neural)
        ngram = self._rng().integers(0, cap + 2, rows).astype(np.int32)
        ngram[self._rng().random(rows) < 0.2] = 0
        start = None
        if self._elsewhere:
            named = self._rng().integers(-1, batch.context_tokens)
            start = np.where(neural > 0, -1, named).astype(np.int32)
        self.decisions.append((int(batch.position[0]), (neural.tolist(), ngram.tolist())))
        return Proposal(neural, ngram, start)

    def learn(self, report: StepResult) -> None:
        self._see(report.drafted, report.accepted, report.emitted, report.emitted_tokens)
        self._see(report.step_s)

    def _see_batch(self, batch: Batch) -> None:
        found = batch.matches
        self._see(batch.slots, batch.prompt_tokens, batch.position)
        self._see(batch.holds_neural, batch.is_new)
        self._see(found.length, found.start, found.votes, found.occurrences, found.available)
        self._see(batch.context.tail(200), batch.context.candidate(9))

    def _see_matches(self, drafts: Drafts, lengths: Ints) -> None:
        found = drafts.splice_match(lengths)
        self._see(found.length, found.start, found.votes, found.occurrences, found.available)

    def _see(self, *shown: object) -> None:
        for value in shown:
            said = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            self._hash.update(said)

    def _rng(self) -> np.random.Generator:
        self._hash.update(b"draw")
        return np.random.default_rng(int.from_bytes(self._hash.digest()[:8], "little"))
