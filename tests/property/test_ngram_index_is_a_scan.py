"""The index against a scan of the whole context, over random and adversarial contexts."""

import dataclasses

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import look_up

from adaspec.draft.index import NgramIndex, look_ups
from adaspec.draft.ring import ring_of

MOST_TOKENS, TAIL, COPIED, CAPACITY = 140, 12, 20, 1024


@st.composite
def contexts(draw):
    """Small alphabets, periods with few flaws, and spans copied from anywhere."""
    random, length = draw(st.randoms(use_true_random=False)), draw(st.integers(0, MOST_TOKENS))
    alphabet = draw(st.sampled_from([1, 2, 3, 5, 20]))
    words = [random.randrange(alphabet) for _ in range(random.choice([1, 7, 49, MOST_TOKENS]))]
    if draw(st.booleans()):
        tokens: list[int] = []
        while len(tokens) < length:
            source = random.randrange(len(words))
            tokens += words[source : source + random.randrange(1, 60)]
        return tuple(tokens[:length])
    tokens = (words * MOST_TOKENS)[:length]
    for at in random.sample(range(length), min(length, random.randrange(4))):
        tokens[at] = 5
    return tuple(tokens)


ANSWERS = st.lists(contexts().filter(len), max_size=15)


def filled(answers):
    """A ring of these answers, and its last tokens, -1 behind each answer."""
    stored = [token for answer in answers for token in (*answer, -1)][-CAPACITY:]
    if not answers:
        return None, stored
    ring = ring_of(answers, CAPACITY)
    np.testing.assert_array_equal(ring.tokens[-CAPACITY:], stored)
    return ring, stored


def facts_of(length, start, votes, occurrences, available, *_):
    assert (start >= 0) == (length > 0)
    return length, votes, occurrences, available


def padded(tokens, count):
    return [*tokens[:count], *[-1] * (count - len(tokens))]


@settings(max_examples=80, deadline=None)
@given(st.lists(contexts(), min_size=1, max_size=4), ANSWERS, st.data())
def test_every_match_behind_a_context_and_behind_a_tail_is_what_a_scan_finds(drawn, answers, data):
    random, slots = data.draw(st.randoms(use_true_random=False)), np.arange(len(drawn))
    ring, stored = filled(answers)
    index, at = NgramIndex(len(drawn), ring), [random.randrange(len(each) + 1) for each in drawn]
    for slot, context in enumerate(drawn):
        index.open(slot, np.array(context[: at[slot]], np.int32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "RING", stored)
        while True:
            known = [list(context[:count]) for context, count in zip(drawn, at, strict=True)]
            found, last, _ = index.survey(slots, MOST_TOKENS, 0)
            lengths = np.array([random.randrange(TAIL + 1) for _ in drawn])
            tails = np.full((len(drawn), TAIL), -1, np.int32)
            for row, context in enumerate(drawn):
                coming = [*context[at[row] :], *context, *range(TAIL)]
                for step in range(lengths[row]):
                    tails[row, step] = random.choice([coming[step], coming[0]])
            behind, _ = index.splice_matches(slots, tails, lengths)
            ends = np.where(lengths > 0, behind[lengths - 1, :, slots][:, 1], found.start)
            drafts = index.propose(slots, ends, np.full(len(slots), COPIED), tails, lengths)
            for row, text in enumerate(known):
                assert last[row].tolist() == [-1] * (MOST_TOKENS - at[row]) + text
                facts = [getattr(found, each.name)[row] for each in dataclasses.fields(found)]
                matches = [facts, *behind[: lengths[row], :, row]]
                for depth, facts in enumerate(matches):
                    match = look_up(text + tails[row, :depth].tolist())
                    wanted = match.length, match.votes, match.occurrences, len(match.copy)
                    assert facts_of(*map(int, facts)) == wanted
                assert drafts[row].tolist() == padded(match.copy, COPIED)
            counts = [
                min(random.choice([0, 1, 1, 2, 5, 70]), len(context) - at[row])
                for row, context in enumerate(drawn)
            ]
            if not sum(counts):
                break
            run = [context[at[row] : at[row] + counts[row]] for row, context in enumerate(drawn)]
            index.extend(slots, np.array(sum(run, ()), np.int32), np.array(counts))
            at = [known + count for known, count in zip(at, counts, strict=True)]


@settings(max_examples=40, deadline=None)
@given(contexts(), ANSWERS, st.data())
def test_offline_rows_are_what_the_running_index_says(context, answers, data):
    split = data.draw(st.integers(0, len(context)))
    positions = range(len(context) - split)
    drafted = np.full((len(positions), 4), -1, np.int32)
    for position in positions:
        for step in range(data.draw(st.integers(0, 4))):
            drafted[position, step] = data.draw(st.sampled_from(context))
    ring, _ = filled(answers)

    found = look_ups(np.array(context, np.int32), split, drafted, ring)

    index, slot = NgramIndex(1, ring), np.arange(1)
    for position in positions:
        index.open(0, np.array(context[: split + position], np.int32))
        own = dataclasses.astuple(index.survey(slot, 1, 1)[0])
        np.testing.assert_array_equal(found[:, position, 0], np.concatenate(own))
        behind, _ = index.splice_matches(slot, drafted[position : position + 1], np.array([4]))
        np.testing.assert_array_equal(found[:, position, 1:], behind[:, :, 0].T)
