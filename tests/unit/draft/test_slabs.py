from __future__ import annotations

import random

from adaspec.draft.buffer import SLAB_WORDS, Slabs


def test_blocks_never_overlap_and_start_on_a_cache_line() -> None:
    choice = random.Random(7)
    slabs, held = Slabs(), []
    for turn in range(600):
        if held and choice.random() < 0.45:
            block, mark = held.pop(choice.randrange(len(held)))
            assert (block.words == mark).all()
            slabs.give(block)
        else:
            block = slabs.take(choice.randrange(1, SLAB_WORDS // 40))
            assert block.base % 64 == 0
            block.words[:] = turn
            held.append((block, turn))
    for block, mark in held:
        assert (block.words == mark).all()
        slabs.give(block)
    assert slabs.nbytes == 0


def test_what_is_given_back_is_used_again() -> None:
    slabs = Slabs()
    blocks = [slabs.take(1000) for _ in range(50)]
    held = slabs.nbytes
    for block in blocks[10:40]:
        slabs.give(block)
    assert slabs.nbytes == held
    joined = slabs.take(29 * 1000)
    assert slabs.nbytes == held
    assert joined.base == blocks[10].base
    large = slabs.take(2 * SLAB_WORDS)
    assert len(large.words) == 2 * SLAB_WORDS
    slabs.give(large)
    assert slabs.nbytes == held, "it had a slab of its own"
