from __future__ import annotations

import pytest

from adaspec.draft.index import NgramIndex
from adaspec.errors import DraftError


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
        lambda: index.match_vllm([second], 1, 33),
    ):
        with pytest.raises(DraftError, match=r"holds no request|max_n=33"):
            call()
    assert index.open([4, 5, 6, 4]) == first
    assert index.survey([first, second], 1, 1)[0].length.tolist() == [1, 1]
    assert index.copies([first, second], [0, 1], 5).tolist() == [[4, 5, 6, 4, -1], [3] + [-1] * 4]


def test_it_grows_with_requests_and_their_texts() -> None:
    index, texts = NgramIndex(), {}
    for number in range(60):
        slot = index.open(range(number))
        texts[slot] = list(range(number))
        if number % 3 == 0:
            index.close(slot)
            del texts[slot]
        slots = list(texts)
        index.extend(slots, [7] * len(slots), [1] * len(slots))
        for each in slots:
            texts[each].append(7)
    assert len(texts) == 40
    for slot, text in texts.items():
        assert index.copies([slot], [0], len(text) + 1)[0].tolist() == [*text, -1]
