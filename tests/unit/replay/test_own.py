import re

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from random_recordings import NEURAL_CAP, random_cost, random_requests, recording_of, static_specs
from reference import close, look_up, splice_match, step_seconds, verified
from refusals import refusal

from adaspec.errors import PolicyFault
from adaspec.policy.protocol import Proposal
from adaspec.policy.static import KINDS, StaticPolicy
from adaspec.replay.own import named_policy
from adaspec.replay.player import Player


class Auditor:
    """Mixes sources and splices at random, within the rules of the replay.

    Whatever it is shown or told, it checks against the requests, which it knows.
    """

    def __init__(self, seed, requests, order, cost, told):
        self.rng = np.random.default_rng([seed, 2])
        self.requests, self.cost, self.waiting = requests, cost, list(order)
        self.running: dict[int, int] = {}
        self.position: dict[int, int] = {}
        self.told = told
        self.drafter = bool(self.rng.random() < 0.9)

    def __deepcopy__(self, memo):
        return self

    def known(self, row):
        request, position = self.requests[self.running[row]], self.position[row]
        return request, position, request.prompt + request.output[:position]

    def decide(self, batch):
        for row in range(len(batch)):
            if batch.position[row] == 1:
                if row in self.running:
                    ended = self.requests[self.running[row]]
                    assert self.position[row] == len(ended.output)
                self.running[row], self.position[row] = self.waiting.pop(0), 1
            request, position, known = self.known(row)
            assert batch.prompt_tokens[row] == len(request.prompt)
            assert batch.position[row] == position
            assert batch.text(row).tolist() == known
            self.see_match(batch.matches, row, known)
        self.count = int(self.rng.integers(0, batch.setup.neural_cap + 1))
        batch.draft(int(self.rng.integers(0, self.count + 1)))
        shown = batch.draft(self.count).tokens.tolist()
        for row in range(len(batch)):
            request, position, _ = self.known(row)
            no_tokens = [-1] * self.count
            said = request.drafted[position][: self.count] if request.drafted else no_tokens
            assert shown[row] == said
        neural = self.rng.integers(0, self.count + 1, len(batch))
        if batch.setup.shows_tokens:
            behind = batch.splice_matches(neural)
            for row in range(len(batch)):
                said = shown[row][: neural[row]]
                self.see_match(behind, row, said and self.known(row)[2] + said)
        ngram = self.rng.integers(0, batch.setup.cap + 1, len(batch))
        return Proposal(neural, np.where(self.rng.random(len(batch)) < 0.2, 0, ngram))

    def see_match(self, matches, row, known):
        found = look_up(known)
        assert matches.length[row] == found.length
        assert matches.available[row] == len(found.copy)
        assert matches.start[row] == (len(known) - len(found.copy) if found.length else -1)

    def learn(self, report):
        batch, proposal, context = report.batch, report.proposal, 0
        for row in range(len(batch)):
            request, position, known = self.known(row)
            neural, ngram = int(proposal.neural_len[row]), int(proposal.ngram_len[row])
            found = splice_match(request, position, neural) if neural else look_up(known)
            assert ngram <= min(len(found.copy), batch.setup.cap - neural)
            accepted = verified(request, position, neural, found.copy[:ngram])
            assert report.accepted[row] == accepted
            assert report.emitted[row] == min(accepted + 1, len(request.output) - position)
            context += len(known)
            self.position[row] += int(report.emitted[row])
        drafted = int((proposal.neural_len + proposal.ngram_len).sum())
        tokens = len(batch) + drafted
        seconds = step_seconds(self.cost, len(batch), tokens, context, self.count, self.drafter)
        assert close(report.step_s, seconds)
        self.told["tokens"] += int(report.emitted.sum())
        self.told["drafted"] += drafted
        self.told["seconds"] += seconds


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 4), st.integers(1, 8))
def test_a_policy_is_shown_what_is_known_by_then_and_told_what_the_texts_imply(
    seed, tokens, concurrency, cap
):
    requests = random_requests(seed, 6, tokens=tokens)
    rng = np.random.default_rng([seed, 1])
    cost = random_cost(rng).without_deciding()
    order = rng.integers(0, 6, concurrency + rng.integers(0, 9)).tolist()
    told = {"tokens": 0, "drafted": 0, "seconds": 0.0}
    own = named_policy("auditor", Auditor(seed, requests, order, cost, told))
    player = Player(recording_of(requests), cost, cap)
    run = player.play(own, np.array(order, np.int32), concurrency)
    assert (run.tokens, run.drafted) == (told["tokens"], told["drafted"])
    assert close(run.time_s, told["seconds"])
    assert run.accepted <= run.drafted


class Deciding:
    """Drafts two tokens, then decides as the test says."""

    def __init__(self, decide, forwards=2):
        self._decide, self._forwards = decide, forwards

    def decide(self, batch):
        batch.draft(self._forwards)
        return self._decide(batch)


def drive(policy, *, tokens=True):
    recording = recording_of(random_requests(1, 4, tokens=tokens, output_tokens=(6, 12)))
    own, order = named_policy("crooked", policy), np.arange(4, dtype=np.int32)
    return Player(recording, random_cost(np.random.default_rng(7)), 9).play(own, order, 2)


def proposed(neural, ngram):
    return lambda batch: Proposal(np.array(neural), np.array(ngram))


def fails(batch):
    raise KeyError("table")


NONSENSE = {
    "more than drafted": (proposed([3, 0], [0, 0]), r"neural_len \[3, 0\].* from 0 to 2"),
    "more than the cap": (proposed([0, 0], [10, 0]), r"ngram_len \[10, 0\].* from 0 to 9"),
    "one row": (proposed([1], [0]), r"neural_len \[1\]: for each of 2 running rows"),
    "NaN": (proposed([0, 0], [np.nan, 0]), "one whole number"),
    "nothing": (lambda batch: None, "decides on None, not on a Proposal"),
    "looks behind 3 of 2": (lambda b: b.splice_matches(np.array([3, 0])), "looks behind"),
    "drafts too much": (lambda b: b.draft(NEURAL_CAP + 1), "asks for 6 forwards: 0 to 5"),
    "fails": (fails, r"failed in decide: KeyError: 'table' \(test_own.py, line"),
}


@pytest.mark.parametrize(("decide", "said"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_in_one_line_that_names_the_policy(decide, said):
    fault = refusal(PolicyFault, drive, Deciding(decide))
    assert re.search(f"policy 'crooked' .*{said}", fault)


def test_nothing_is_looked_up_behind_drafted_tokens_that_the_trace_lacks():
    def look(batch):
        batch.splice_matches(np.array([2, 1]))
        return Proposal(np.array([2, 1]), np.array([3, 3]))

    drive(Deciding(look))
    assert "which this trace lacks" in refusal(PolicyFault, drive, Deciding(look), tokens=False)
    drive(Deciding(proposed([2, 1], [3, 3])), tokens=False)


def test_every_run_begins_with_the_object_as_it_was_given():
    class Counting:
        steps = 0

        def decide(self, batch):
            self.steps += 1
            batch.draft(self.steps % 3)
            return Proposal(*np.zeros((2, 2), int))

    policy = Counting()
    assert drive(policy).time_s == drive(policy).time_s
    assert policy.steps == 0


def test_every_static_rule_is_among_those_held_against_the_reference():
    kinds = static_specs()
    for head in [head for head, kind in KINDS.items() if kind.policy is StaticPolicy]:
        assert find(kinds, lambda spec, head=head: f"{spec}:".startswith(f"{head}:"))
