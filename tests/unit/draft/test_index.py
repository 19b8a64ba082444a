from __future__ import annotations

import pytest

from adaspec.draft.index import NgramIndex
from adaspec.errors import DraftError


def context(index: NgramIndex, slot: int) -> list[int]:
    """All of a request's tokens."""
    return [token for token in index.copies([slot], [0], 50)[0].tolist() if token >= 0]


def test_a_closed_slot_is_refused_and_given_out_again() -> None:
    index = NgramIndex()
    first, second = index.open([1, 2, 1]), index.open([3, 3])
    index.close(first)
    for call in (
        lambda: index.survey([first], 1, 1),
        lambda: index.extend([first], [1], [1]),
        lambda: index.tail([first], 1),
        lambda: index.close(first),
        lambda: index.copies([first], [0], 1),
        lambda: index.tail([-1], 1),
        lambda: index.tail([99], 1),
    ):
        with pytest.raises(DraftError, match="holds no request"):
            call()
    assert index.open([4, 5, 6, 4]) == first
    assert index.survey([first, second], 1, 1)[0].length.tolist() == [1, 1]
    assert context(index, first) == [4, 5, 6, 4]


def test_a_wrong_extend_changes_nothing() -> None:
    index = NgramIndex()
    slots = [index.open([1, 2]), index.open([3])]
    closed = index.open([1])
    index.close(closed)
    for rows, tokens, counts, complaint in (
        (slots, [1, 2, 3], [1, 1], "add up to 2"),
        (slots, [1, 2], [3, -1], "count >= 0"),
        (slots, [1, 2], [2], "1 counts"),
        ([slots[0], closed], [1, 2], [1, 1], f"slot {closed} holds no request"),
    ):
        with pytest.raises(DraftError, match=complaint):
            index.extend(rows, tokens, counts)
        assert [context(index, slot) for slot in slots] == [[1, 2], [3]]
    index.extend(slots, [9, 9], [1, 1])
    assert [context(index, slot) for slot in slots] == [[1, 2, 9], [3, 9]]


def test_out_of_range_questions_are_refused() -> None:
    index = NgramIndex()
    slot = index.open([1, 2])
    with pytest.raises(DraftError, match="tail lengths from 3 to 3"):
        index.splice_match([slot], [[1, 2]], [3])
    with pytest.raises(DraftError, match="shape"):
        index.tail([[slot]], 1)
