"""The index of earlier answers, against a plain search through all of them."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from answer_search import plain_search
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspec.draft.answers import (
    BYTES_PER_TOKEN,
    IN_ANSWERS,
    AnswerIndex,
    find_answer,
    is_better,
)
from adaspec.draft.index import NgramIndex
from adaspec.draft.positions import match_positions, splice_matches
from adaspec.errors import DraftError

ROOMY = 50_000 * BYTES_PER_TOKEN

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def found(index: AnswerIndex, text: list[int], owner: int = 1, least: int = 0):
    length, place, votes, occurrences, available = find_answer(
        index.address, owner, np.array(text, np.int32), least
    )
    if length == 0:
        assert (place, votes, occurrences, available) == (-1, 0, 0, 0)
        return None
    return length, index.stored[place : place + available].tolist(), votes, occurrences


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(tokens, st.integers(1, 3), st.booleans()), max_size=12), tokens)
def test_an_owner_finds_own_answers_alone_and_what_is_forgotten_hides_nothing_before_it(
    answers: list[tuple[list[int], int, bool]], text: list[int]
) -> None:
    index = AnswerIndex(ROOMY)
    stored = [index.add(answer, owner) for answer, owner, _ in answers]
    kept = []
    for place, (answer, owner, forgotten) in zip(stored, answers, strict=True):
        assert (place is None) == (len(answer) <= 2)
        if place is not None and forgotten:
            index.forget(place)
            index.forget(place)  # twice is once
        elif place is not None:
            kept.append((answer, owner))
    for owner in (1, 2, 3, 4):
        own = [answer for answer, of in kept if of == owner]
        assert found(index, text, owner) == plain_search(own, text)
    assert index.tokens == sum(len(answer) for answer, _ in kept)


def test_keys_stand_for_owners() -> None:
    index = AnswerIndex(ROOMY)
    salted, plain = index.owner(("salt", None)), index.owner((None, None))
    assert salted != plain and index.owner(("salt", None)) == salted
    index.add([1, 2, 3, 4], salted)
    assert found(index, [1, 2], plain) is None
    assert found(index, [1, 2], salted) == (2, [3, 4], 1, 1)


def test_a_long_answer_keeps_its_end() -> None:
    index = AnswerIndex(1_024 * BYTES_PER_TOKEN)
    index.add(np.arange(5_000))
    assert index.tokens == 512
    assert found(index, [4_990, 4_991]) == (2, list(range(4_992, 5_000)), 1, 1)
    assert found(index, [100, 101]) is None


def test_no_room_and_wrong_answers_are_refused() -> None:
    with pytest.raises(DraftError, match="give at least"):
        AnswerIndex(1_000)
    index = AnswerIndex(ROOMY)
    for answer in ([-1, 2, 3], [[1, 2], [3, 4]]):
        with pytest.raises(DraftError, match="an answer is"):
            index.add(answer)


@pytest.mark.parametrize(
    ("answers", "taken"),
    [
        ([[1, 2, 3, 4, 5, 6, 8]], False),  # longer by two
        ([[0, 9, 1, 2, 3, 4, 5, 6, 8]], True),  # by four
        ([[1, 2, 3, 4, 5, 6, 8], [1, 2, 3, 4, 5, 6, 8]], True),  # by two, and twice so
        ([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8]], False),  # the two disagree
        ([[3, 4, 5, 6, 8], [3, 4, 5, 6, 8]], False),  # as long as the own one
    ],
)
def test_where_occurrences_agree_a_match_need_only_be_longer(
    answers: list[list[int]], taken: bool
) -> None:
    index = AnswerIndex(ROOMY)
    for answer in answers:
        index.add(answer)
    text = [3, 4, 5, 6, 7, 0, 9, 1, 2, 3, 4, 5, 6]
    matches = match_positions(text, [8], index)
    assert (matches.start[0] >= IN_ANSWERS) == taken


@settings(deadline=None, max_examples=60)
@given(st.lists(tokens, max_size=4), tokens, tokens)
def test_serving_and_recorded_look_ups_agree_and_take_answers_where_these_are_ahead(
    answers: list[list[int]], prompt: list[int], output: list[int]
) -> None:
    index = AnswerIndex(ROOMY)
    for answer in answers:
        index.add(answer)
    both, own = match_positions(prompt, output, index), match_positions(prompt, output)
    rng = np.random.default_rng(len(prompt))
    drafted = rng.integers(0, 4, (len(output), 3)).astype(np.int32)
    behind = splice_matches(prompt, output, drafted, index)
    live = NgramIndex(index)
    slot = live.open(prompt)
    for position, token in enumerate(output):
        matches, _, copied = live.survey([slot], 3, 4)
        for name in ("length", "start", "votes", "occurrences", "available"):
            assert getattr(matches, name)[0] == getattr(both, name)[position], name
        text = prompt + output[:position]
        hit = plain_search([a for a in answers if len(a) > 2], text)
        length = int(own.length[position])
        if hit is not None and is_better(length, hit[0], *hit[2:4]):
            assert matches.start[0] >= IN_ANSWERS
            assert (int(matches.length[0]), int(matches.votes[0]), int(matches.occurrences[0])) == (
                hit[0],
                hit[2],
                hit[3],
            )
            said = hit[1][:4]
            assert copied[0].tolist() == said + [-1] * (4 - len(said))
            proposed = live.propose([slot], matches.start, [3], [[-1]], [0])
            assert proposed[0].tolist() == (said[:3] + [-1] * 3)[:3]
        else:
            assert matches.start[0] == own.start[position]
        for count in (1, 2, 3):
            after = live.splice_match([slot], drafted[position : position + 1], [count])
            for name in ("length", "start", "votes", "occurrences", "available"):
                assert getattr(after, name)[0] == getattr(behind, name)[position, count - 1], name
        live.extend([slot], [token], [1])


def test_what_is_stored_can_be_read_when_its_index_is_gone() -> None:
    index = AnswerIndex(ROOMY)
    index.add([5, 6, 7])
    words, stored = weakref.ref(index.words), index.stored
    del index
    assert words() is not None
    assert stored[:4].tolist() == [5, 6, 7, -1]
