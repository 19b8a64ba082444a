"""The index against a scan of the whole context, over random and adversarial contexts."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaspec.draft.chains import Matches
from adaspec.draft.index import NgramIndex, look_ups
from adaspec.draft.ring import ring_of

MOST_TOKENS, MAX_MATCH = 140, 32
FACTS = ("length", "start", "votes", "occurrences", "available")
Context = tuple[int, ...]
Batch = tuple[list[Context], list[int]]
"""Contexts, and how much of each is the prompt."""


def common_suffix(context: Context, end: int, limit: int) -> int:
    """How many tokens before `end` equal those before the context's own end."""
    length = 0
    newest = len(context) - 1
    while length < min(limit, end) and context[end - 1 - length] == context[newest - length]:
        length += 1
    return length


def look_up(context: Context, max_match: int = MAX_MATCH) -> tuple[int, ...]:
    """(length, start, votes, occurrences, available) of the context as it stands."""
    lengths = [common_suffix(context, end, max_match) for end in range(len(context))]
    longest = max(lengths, default=0)
    if longest == 0:
        return 0, -1, 0, 0, 0
    ends = [end for end, length in enumerate(lengths) if length >= longest]
    latest = ends[-8:]
    votes = sum(context[end] == context[latest[-1]] for end in latest)
    return longest, ends[-1], votes, len(latest), len(context) - ends[-1]


def facts_of(matches: Matches, *at: int) -> tuple[int, ...]:
    return tuple(int(getattr(matches, name)[at]) for name in FACTS)


@st.composite
def contexts(draw: st.DrawFn, most: int = MOST_TOKENS) -> Context:
    """One token, two tokens, periodic with and without flaws, small alphabets, copied spans."""
    length = draw(st.integers(0, most))
    random = draw(st.randoms(use_true_random=False))
    kind = draw(st.sampled_from(["one", "two", "periodic", "flawed", "small", "copied"]))
    if kind == "one":
        return (7,) * length
    if kind == "two":
        return tuple(random.randrange(2) for _ in range(length))
    if kind in ("periodic", "flawed"):
        period = [random.randrange(3) for _ in range(random.randrange(1, 50))]
        tokens = (period * (length // len(period) + 1))[:length]
        if kind == "flawed":
            for at in random.sample(range(length), min(length, 3)):
                tokens[at] = 5
        return tuple(tokens)
    if kind == "small":
        return tuple(random.randrange(random.choice([3, 5, 20])) for _ in range(length))
    words = [random.randrange(4) for _ in range(max(1, length // 3))]
    tokens = []
    while len(tokens) < length:
        source = random.randrange(len(words))
        tokens += words[source : source + random.randrange(1, 60)]
    return tuple(tokens[:length])


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    drawn = draw(st.lists(contexts(), min_size=1, max_size=5))
    prompts = [draw(st.integers(0, len(context))) for context in drawn]
    return drawn, prompts


def open_all(drawn: list[Context], prompts: list[int]) -> tuple[NgramIndex, NDArray[np.int64]]:
    index = NgramIndex(len(drawn))
    for slot, (context, at) in enumerate(zip(drawn, prompts, strict=True)):
        index.open(slot, np.array(context[:at], np.int32))
    return index, np.arange(len(drawn))


@settings(max_examples=60, deadline=None)
@given(batches(), st.data())
def test_every_fact_is_what_a_scan_finds(batch: Batch, data: st.DataObject) -> None:
    drawn, at = batch
    index, slots = open_all(drawn, at)
    while True:
        matches, tails, _ = index.survey(slots, MOST_TOKENS, 0)
        for row, context in enumerate(drawn):
            assert facts_of(matches, row) == look_up(context[: at[row]])
            assert tuple(tails[row]) == (-1,) * (MOST_TOKENS - at[row]) + context[: at[row]]
        counts = [
            min(data.draw(st.sampled_from([0, 1, 1, 2, 5, 70])), len(context) - at[row])
            for row, context in enumerate(drawn)
        ]
        if not sum(counts):
            break
        run = [drawn[row][at[row] : at[row] + count] for row, count in enumerate(counts)]
        index.extend(slots, np.array(sum(run, ()), np.int32), np.array(counts))
        at = [known + count for known, count in zip(at, counts, strict=True)]


@settings(max_examples=80, deadline=None)
@given(batches(), st.integers(0, 12), st.data())
def test_a_look_up_behind_a_tail_is_the_look_up_after_extending_by_it(
    batch: Batch, most: int, data: st.DataObject
) -> None:
    drawn, prompts = batch
    index, slots = open_all(drawn, prompts)
    random = data.draw(st.randoms(use_true_random=False))
    tails = np.full((len(drawn), most), -1, np.int32)
    lengths = np.array([random.randrange(most + 1) for _ in drawn])
    for row, context in enumerate(drawn):
        for step in range(lengths[row]):
            coming = context[prompts[row] + step : prompts[row] + step + 1]
            tails[row, step] = random.choice((coming or context or (3,)) + (context or (3,))[-1:])
    found, _, _ = index.survey(slots, 0, 0)
    before = [facts_of(found, row) for row in range(len(slots))]

    every, _ = index.splice_matches(slots, tails, lengths)
    none = np.array([0, -1, 0, 0, 0], np.int32)
    last = [every[n - 1, :, row] if n else none for row, n in enumerate(lengths)]
    behind = Matches(*np.array(last).T)
    drafts = index.propose(slots, behind.start, np.full(len(slots), 20), tails, lengths)

    again, _, _ = index.survey(slots, 0, 0)
    assert [facts_of(again, row) for row in range(len(slots))] == before
    for row, length in enumerate(lengths):
        extended = drawn[row][: prompts[row]] + tuple(tails[row, :length].tolist())
        assert facts_of(behind, row) == (look_up(extended) if length else (0, -1, 0, 0, 0))
        start = int(behind.start[row])
        copied = extended[start : start + 20] if start >= 0 else ()
        assert tuple(drafts[row]) == copied + (-1,) * (20 - len(copied))
    said = [tails[row, :n] for row, n in enumerate(lengths)]
    index.extend(slots, np.concatenate(said), lengths)
    after, _, _ = index.survey(slots, 0, 0)
    for row in range(len(slots)):
        assert facts_of(after, row) == look_up(
            drawn[row][: prompts[row]] + tuple(tails[row, : lengths[row]].tolist())
        )


@settings(max_examples=40, deadline=None)
@given(contexts(), st.lists(contexts(), max_size=9), st.data())
def test_offline_rows_are_what_the_running_index_says(
    context: Context, answers: list[Context], data: st.DataObject
) -> None:
    split = data.draw(st.integers(0, len(context)))
    positions = range(len(context) - split)
    drafted = np.full((len(positions), 4), -1, np.int32)
    for position in positions:
        for step in range(data.draw(st.integers(0, 4))):
            drafted[position, step] = data.draw(st.sampled_from(context))
    ring = ring_of([*answers, context[split:]]) if answers else None

    found = look_ups(np.array(context, np.int32), split, drafted, ring)

    index, slot = NgramIndex(1, ring), np.arange(1)
    for position in positions:
        index.open(0, np.array(context[: split + position], np.int32))
        own = dataclasses.astuple(index.survey(slot, 1, 1)[0])
        np.testing.assert_array_equal(found[:, position, 0], np.concatenate(own))
        behind, _ = index.splice_matches(slot, drafted[position : position + 1], np.array([4]))
        np.testing.assert_array_equal(found[:, position, 1:], behind[:, :, 0].T)
