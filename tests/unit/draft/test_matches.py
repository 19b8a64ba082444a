import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import look_up

from adaspec.draft.index import NgramIndex, look_ups
from adaspec.draft.matches import LENGTH, Ring, read_ring, ring_of, write_ring
from adaspec.errors import DraftError

CAPACITY = 1024


def test_an_answer_is_kept_as_far_as_it_is_known_and_fits():
    ring = ring_of([[5, 6, -1, 7], [], [-1, 8]])
    assert ring.tokens.tolist() == [5, 6, -1]
    ring = Ring(CAPACITY)
    ring.append(np.arange(3 * CAPACITY))
    assert ring.tokens[0] == 2 * CAPACITY + 1 and len(ring.tokens) == CAPACITY


def test_a_file_holds_what_was_searched_and_is_its_owners_alone(tmp_path):
    ring, path = ring_of([[1, 2, 3]] * 900, CAPACITY), tmp_path / "ring"
    write_ring(path, ring.searched, "v")
    assert path.stat().st_mode & 0o777 == 0o600
    again = ring_of(read_ring(path, "v", 4), CAPACITY)
    np.testing.assert_array_equal(again.searched, ring.searched)
    for vocabulary, size, why in (("w", 4, "of another vocabulary"), ("v", 3, "of 3")):
        with pytest.raises(DraftError, match=why):
            read_ring(path, vocabulary, size)
    path.write_bytes(path.read_bytes()[:90])
    with pytest.raises(DraftError, match="holds no ring"):
        read_ring(path, "v", 4)


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


def padded(tokens, count):
    return [*tokens[:count], *[-1] * (count - len(tokens))]


@settings(max_examples=80, deadline=None)
@given(st.lists(contexts(), min_size=1, max_size=4), ANSWERS, st.data())
def test_every_match_behind_a_context_and_behind_a_tail_is_what_a_scan_finds(drawn, answers, data):
    random, slots = data.draw(st.randoms(use_true_random=False)), np.arange(len(drawn))
    ring, stored = filled(answers)
    index, at = NgramIndex(len(drawn), ring), [random.randrange(len(each) + 1) for each in drawn]
    for slot, context in enumerate(drawn):
        index.open(slot, np.array(context[: at[slot]], np.int32), len(context) + TAIL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "RING", stored)
        while True:
            lengths = np.array([random.randrange(TAIL + 1) for _ in drawn])
            tails = np.full((len(drawn), TAIL), -1, np.int32)
            for row, context in enumerate(drawn):
                coming = [*context[at[row] :], *context, *range(TAIL)]
                for step in range(lengths[row]):
                    tails[row, step] = random.choice([coming[step], coming[0]])
            facts, copied = index.find(slots, tails, COPIED)
            for row, context in enumerate(drawn):
                for depth in range(lengths[row] + 1):
                    match = look_up([*context[: at[row]], *tails[row, :depth].tolist()])
                    length, start, *found = facts[:, row, depth].tolist()
                    assert (start >= 0) == (length > 0)
                    wanted = match.length, match.votes, match.occurrences, len(match.copy)
                    assert (length, *found) == wanted
                    assert copied[row, depth].tolist() == padded(match.copy, COPIED)
                assert not facts[LENGTH, row, lengths[row] + 1 :].any()
            counts = [
                min(random.choice([0, 1, 1, 2, 5, 70]), len(context) - at[row])
                for row, context in enumerate(drawn)
            ]
            if not sum(counts):
                break
            run = [context[at[row] : at[row] + counts[row]] for row, context in enumerate(drawn)]
            index.extend(slots, np.array(sum(run, ()), np.int32), np.array(counts))
            at = [known + count for known, count in zip(at, counts, strict=True)]


def test_recorded_texts_are_looked_up_at_every_position_and_tokens_of_one_hash_told_apart():
    rng = np.random.default_rng(0)
    text, prompt = rng.zipf(1.3, 1500).clip(max=30_000).astype(np.int32), 1400
    drafted = text[rng.integers(1500, size=(100, 3))]
    drafted[rng.random(drafted.shape) < 0.2] = -1
    found = look_ups(text, prompt, drafted)
    for position, tail in enumerate(drafted.tolist()):
        tail = tail[: tail.index(-1)] if -1 in tail else tail
        for depth in range(len(tail) + 1):
            match = look_up([*text[: prompt + position].tolist(), *tail[:depth]])
            length, _, *facts = found[:, position, depth].tolist()
            wanted = match.length, match.votes, match.occurrences, len(match.copy)
            assert (length, *facts) == wanted
        assert not found[LENGTH, position, len(tail) + 1 :].any()
