"""A plain scan finds what the index finds, in texts, behind drafts and in earlier answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_answers import OWNERS, empty_index, random_answers

from adaspec.draft.index import NgramIndex
from adaspec.draft.match import AGREE, AVAILABLE, FACTS, LENGTH, SEEN, START
from adaspec.draft.scan import Texts, match_rows, propose_rows

ROWS = 4


@pytest.mark.parametrize("remembers", [False, True])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_it_finds_what_the_index_finds(remembers: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    alphabet, depths = int(rng.choice([2, 4, 12])), int(rng.integers(0, 4))
    answers = empty_index()
    for answer, owner in random_answers(rng, alphabet, int(rng.integers(0, 120)) * remembers):
        answers.add(answer, owner)
    owners = rng.integers(0, OWNERS, ROWS + 2).astype(np.int32)
    slots = rng.permutation(ROWS + 2)[:ROWS]
    tokens = rng.integers(0, alphabet, (ROWS + 2, 90)).astype(np.int32)
    known = rng.integers(1, 80, ROWS + 2).astype(np.int32)
    for slot in slots:
        if answers.tokens > 40 and rng.random() < 0.7:  # a text that ends as an answer goes on
            begin = int(rng.integers(0, answers.tokens - 40))
            said = answers.stored[begin : begin + rng.integers(3, 40)]
            said = np.maximum(said, 0)[-known[slot] :]
            tokens[slot, known[slot] - len(said) : known[slot]] = said
    index = NgramIndex(answers if remembers else None)
    opened = [index.open(tokens[slot, : known[slot]], int(owners[slot])) for slot in slots]
    texts = Texts(slots, tokens, known, answers.address if remembers else 0, owners)
    drafts = rng.integers(0, alphabet, (ROWS, depths)).astype(np.int32)
    facts, copied = np.zeros((FACTS, ROWS), np.int32), np.zeros((ROWS, 8), np.int32)
    for depth in range(depths + 1):
        match_rows(texts, drafts, depth, facts, copied)
        counts = np.full(ROWS, depth)
        wanted, _, _ = index.survey(opened, 0, 0)
        if depth:
            wanted = index.lookup_behind(opened, drafts, counts)
        for fact, column in {
            LENGTH: wanted.length,
            START: wanted.start,
            AGREE: wanted.agree,
            SEEN: wanted.seen,
            AVAILABLE: wanted.available,
        }.items():
            np.testing.assert_array_equal(facts[fact], column, f"{fact} behind {depth}")
        lengths = np.full(ROWS, 8)
        said = index.propose(opened, wanted.start, lengths, drafts, counts)
        np.testing.assert_array_equal(copied, said)
        neural = np.full(ROWS, depth, np.int32)
        ngram = rng.integers(0, 5, ROWS).astype(np.int32)
        proposed = np.zeros((ROWS, 9), np.int32)
        propose_rows(texts, drafts, depth, facts[START].copy(), neural, ngram, proposed)
        for row in range(ROWS):
            whole = [*drafts[row, :depth], *said[row, : ngram[row]]]
            assert proposed[row].tolist() == whole + [-1] * (9 - len(whole))
