"""Whatever a policy decides, all it is shown and told is what the texts known by then imply."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_recordings import random_cost, random_requests, recording_of
from reference import Match, Request, close, look_up, splice_match, step_seconds, verified

from adaspec.cost.model import CostModel
from adaspec.draft.match import Matches
from adaspec.policy.protocol import Batch, Proposal, Setup, StepResult
from adaspec.replay.loop import run_policy


class Auditor:
    """Mixes sources and splices at random, within the rules of the replay.

    Whatever it is shown or told, it checks against the requests, which it knows.
    """

    name = "auditor"

    def __init__(
        self, seed: int, requests: list[Request], order: list[int], cost: CostModel, cap: int
    ) -> None:
        self.rng = np.random.default_rng([seed, 2])
        self.requests, self.cost, self.cap = requests, cost, cap
        self.waiting = list(order)
        self.running: dict[int, int] = {}
        self.position: dict[int, int] = {}
        self.holds: dict[int, bool] = {}
        self.tokens = self.drafted = 0
        self.seconds = 0.0

    def start(self, setup: Setup) -> None:
        self.setup = setup

    def holds_drafter(self, load: int) -> bool:
        return bool(self.rng.random() < 0.9)

    def forwards(self, batch: Batch) -> int:
        for row, slot in enumerate(batch.slots.tolist()):
            self.see_row(batch, slot, row)
        most = self.setup.neural_cap if batch.holds_neural.any() else 0
        return int(self.rng.integers(0, most + 1))

    def see_row(self, batch: Batch, slot: int, row: int) -> None:
        if batch.is_new[row]:
            if slot in self.running:
                assert self.position[slot] == len(self.requests[self.running[slot]].output)
            self.running[slot], self.position[slot] = self.waiting.pop(0), 1
            self.holds[slot] = bool(batch.holds_neural[row])
        # It may be taken from all, and is then never given back.
        self.holds[slot] &= bool(batch.holds_neural[row])
        request, position = self.requests[self.running[slot]], self.position[slot]
        known = request.prompt + request.output[:position]
        found = self.see_match(batch.matches, row, known)
        assert batch.prompt_tokens[row] == len(request.prompt)
        assert batch.position[row] == position
        assert batch.context_tokens[row] == len(known)
        assert batch.holds_neural[row] == self.holds[slot]
        assert [t for t in batch.context.tail(100)[row].tolist() if t >= 0] == known
        copied = [t for t in batch.context.candidate(6)[row].tolist() if t >= 0]
        assert copied == found.copy[:6]

    def decide(self, batch: Batch) -> Proposal:
        drafts, rng, rows = batch.drafts, self.rng, len(batch)
        self.count = drafts.count
        for row, slot in enumerate(batch.slots.tolist()):
            said = self.requests[self.running[slot]].drafted
            shown = drafts.tokens[row].tolist()
            if said is None or not self.holds[slot]:
                assert set(shown) <= {-1}
            else:
                assert shown == said[self.position[slot]][: drafts.count]
        most = np.where(batch.holds_neural, drafts.count, 0)
        neural = np.minimum(rng.integers(0, drafts.count + 1, rows), most)
        if self.setup.shows_tokens:
            self.see_splices(batch, neural)
        ngram = np.where(rng.random(rows) < 0.2, 0, rng.integers(0, self.cap + 2, rows))
        named = rng.integers(-1, batch.context_tokens)
        return Proposal(neural, ngram, np.where(neural > 0, -1, named))

    def see_splices(self, batch: Batch, neural: np.ndarray) -> None:
        behind = batch.drafts.splice_match(neural)
        for row, slot in enumerate(batch.slots.tolist()):
            request, position = self.requests[self.running[slot]], self.position[slot]
            said = batch.drafts.tokens[row, : neural[row]].tolist()
            self.see_match(behind, row, said and request.prompt + request.output[:position] + said)

    def see_match(self, matches: Matches, row: int, known: list[int]) -> Match:
        found = look_up(known)
        assert matches.length[row] == found.length
        assert matches.available[row] == len(found.copy)
        assert matches.start[row] == (len(known) - len(found.copy) if found.length else -1)
        return found

    def learn(self, report: StepResult) -> None:
        batch, proposal = report.batch, report.proposal
        context = 0
        for row, slot in enumerate(batch.slots.tolist()):
            request, position = self.requests[self.running[slot]], self.position[slot]
            known = request.prompt + request.output[:position]
            neural, start = int(proposal.neural_len[row]), int(proposal.ngram_start[row])
            if neural > 0:
                copied = splice_match(request, position, neural).copy
            elif start >= 0:
                copied = known[start:]
            else:
                copied = look_up(known).copy
            copied = copied[: min(int(proposal.ngram_len[row]), self.cap - neural)]
            accepted = verified(request, position, neural, copied)
            emitted = request.output[position : position + accepted + 1]
            assert report.neural_drafted[row] == neural
            assert report.drafted[row] == neural + len(copied)
            assert report.accepted[row] == accepted
            assert report.emitted_tokens[row] == len(emitted)
            assert [t for t in report.emitted[row].tolist() if t >= 0] == emitted
            context += len(known)
            self.position[slot] += len(emitted)
            self.tokens += len(emitted)
        verified_tokens = len(batch) + int(report.drafted.sum())
        holds = any(self.holds[slot] for slot in batch.slots.tolist())
        seconds = step_seconds(self.cost, len(batch), verified_tokens, context, self.count, holds)
        assert close(report.step_s, seconds)
        self.seconds += seconds
        self.drafted += int(report.drafted.sum())


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 4), st.integers(1, 8))
def test_a_policy_is_shown_what_is_known_by_then_and_told_what_the_texts_imply(
    seed, tokens, concurrency, cap
):
    requests = random_requests(seed, 6, tokens=tokens)
    rng = np.random.default_rng([seed, 1])
    cost = random_cost(rng).without_deciding()
    order = rng.integers(0, 6, concurrency + rng.integers(0, 9)).tolist()
    auditor = Auditor(seed, requests, order, cost, cap)
    entries = np.array(order, np.int32)
    run = run_policy(recording_of(requests), auditor, entries, concurrency, cost, cap)
    assert (run.tokens, run.drafted) == (auditor.tokens, auditor.drafted)
    assert close(run.time_s, auditor.seconds)
    assert run.accepted <= run.drafted
