"""A policy's memory behind an address is the very memory that Python sees."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from random_models import random_model

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.policy.anchor import COUNT, Anchor, Post, new_post, recall
from adaspec.policy.desk import knob_row, new_desk
from adaspec.predict.tables import packed


@njit  # not cached: nobody would drop what lies beside a test when the layout changes
def _seen(address: int) -> tuple[float, int, float]:
    post = recall(address)
    post.desk.gain[1] = 7.5
    post.limits[COUNT] = 2
    return post.cost[0], post.rows.candidate.shape[1], post.mind.tables.base[1]


def post_of(seed: int, slots: int = 3) -> Post:
    empty = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), empty, empty, empty, (0.25, 0.75, 0, 0), 1)
    model = random_model(seed, tables, evidence=True)
    cost = H100_LLAMA_3_1_8B.constants()
    return new_post(model.mind(), new_desk([model], slots), knob_row({}), cost, slots, 48, 8)


def test_compiled_code_reads_and_writes_the_arrays_behind_the_address() -> None:
    for seed in range(3):
        anchor = Anchor(post_of(seed))
        cost, wide, base = _seen(anchor.address)
        assert (cost, wide, base) == (
            anchor.post.cost[0],
            anchor.post.rows.candidate.shape[1],
            0.75,
        )
        assert anchor.post.desk.gain[1] == 7.5
        assert anchor.post.limits[COUNT] == 2


def test_arrays_that_are_read_only_or_in_pieces_are_copied() -> None:
    post = post_of(0)
    knobs = np.repeat(post.knobs, 2)[::2]
    post.cost.setflags(write=False)
    anchor = Anchor(post._replace(knobs=knobs))
    np.testing.assert_array_equal(anchor.post.knobs, post.knobs)
    assert anchor.post.cost.flags.writeable
    assert _seen(anchor.address)[0] == post.cost[0]


def test_memory_of_another_layout_is_refused() -> None:
    with pytest.raises(TypeError, match="laid out"):
        Anchor(post_of(0)._replace(knobs=np.zeros((2, 2))))
