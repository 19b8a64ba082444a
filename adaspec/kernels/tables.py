"""The token tables of `predict.tables`, all levels and slots of a search at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from adaspec.kernels.layout import LEVEL_LANES
from adaspec.kernels.twins import device
from adaspec.kernels.vectors import shifted
from adaspec.predict import tables as token_tables
from adaspec.predict.tables import Tables

AFTER_1, AFTER_2, AFTER_3, FIRST, AFTER_LAST, FIRST_TWO, AT_CANDIDATE, LEVELS = map(
    tl.constexpr, range(8)
)
OF_NEURAL, OF_NGRAM = map(tl.constexpr, range(2))
MEAN, LOG_COUNT, DEPTH, VALUES_PER_LEVEL = map(tl.constexpr, range(4))
_ADDED, _FIRST_FACTOR, _SECOND_FACTOR = (
    tl.constexpr(number - (1 << 64))
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of the tables' hash as signed numbers: products and sums wrap around alike."""


class TableBuffers(NamedTuple):
    """The entries of `Tables` as kernels read them."""

    keys: Tensor
    """(slots,) int64, 0 in free ones."""
    entries: Tensor
    """(slots, 3) float32 means, log counts and depths. Triton's tuples have `values` of their own.
    """
    base: Tensor
    """(4,) float32."""
    salted: Tensor
    """(LEVEL_LANES,) int64 the hashes that keys of each level begin with."""
    mask: int
    """The number of slots, a power of two, less one."""
    probes: tl.constexpr
    """A power of two: at least as many slots as a search looks at."""

    @classmethod
    def of(cls, given: Tables, device: torch.device) -> TableBuffers:
        """The tables on a device."""
        salted = np.zeros(LEVEL_LANES.value, np.uint64)
        salted[: LEVELS.value] = token_tables.salted(given.salt)
        keys, place, probes = addressed(given.keys)
        values = np.zeros((len(keys), VALUES_PER_LEVEL.value), np.float32)
        values[place] = given.entries
        return cls(
            torch.from_numpy(keys.view(np.int64)).to(device),
            torch.from_numpy(values).to(device),
            torch.from_numpy(np.ascontiguousarray(given.base.T).ravel()).to(device),
            torch.from_numpy(salted.view(np.int64)).to(device),
            len(keys) - 1,
            tl.constexpr(triton.next_power_of_2(probes)),
        )


def addressed(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64], int]:
    """An open-addressing table of the keys, at most half full, and the slot of each.

    Last comes how many slots a search looks at until it finds any key that is in the table. The
    lowest bit of a key is always set; with it, half of the slots would never be the first choice.
    """
    size = 1 << max(4, int(2 * len(keys) - 1).bit_length())
    slots, mask = np.zeros(size, np.uint64), np.uint64(size - 1)
    place, left, probes = (keys >> np.uint64(1)) & mask, np.arange(len(keys)), 0
    while len(left):
        probes += 1
        wanted, first = np.unique(place[left], return_index=True)
        free = slots[wanted] == 0
        slots[wanted[free]] = keys[left[first[free]]]
        left = left[slots[place[left]] != keys[left]]
        place[left] = (place[left] + np.uint64(1)) & mask
    return slots, place, max(probes, 1)


@device("predict.tables.mixed")
def _mixed(h: tl.tensor, value: tl.tensor) -> tl.tensor:
    h = (h ^ (value + _ADDED)) * _FIRST_FACTOR
    h = (h ^ shifted(h, 29)) * _SECOND_FACTOR
    return h ^ shifted(h, 32)


@device("predict.tables.values_of", "predict.tables.level_keys", "predict.tables.find")
def values_of(
    tables: tl.tuple, t1: tl.tensor, t2: tl.tensor, t3: tl.tensor, c1: tl.tensor, c2: tl.tensor
) -> tl.tuple:
    """By level, what the tables say behind the last tokens t and at a candidate c, as float32.

    An unseen key gets its parent's mean and depth, and count 0.
    """
    level = tl.arange(0, LEVEL_LANES)
    of_last = level < FIRST
    of_pair = (level == AFTER_LAST) | (level == AT_CANDIDATE)
    first = tl.where(of_last, t1, c1)
    second = tl.where(of_pair, t1, tl.where(level == FIRST_TWO, c2, -1))
    second = tl.where((level == AFTER_2) | (level == AFTER_3), t2, second)
    third = tl.where(level == AFTER_3, t3, -1)
    needed = tl.where(level == AFTER_2, t2, tl.where(level == AFTER_3, t3, first))
    partner = tl.where(of_pair, t1, tl.where(level == FIRST_TWO, c2, 0))
    known = (level < LEVELS) & (needed >= 0) & (partner >= 0)
    h = tl.load(tables.salted + level)
    h = _mixed(h, first.to(tl.int64) + 2)
    h = _mixed(h, second.to(tl.int64) + 2)
    h = _mixed(h, third.to(tl.int64) + 2) | 1
    # An arithmetic shift fills in bits that the mask removes.
    slots = ((h >> 1)[:, None] + tl.arange(0, tables.probes)[None, :]) & tables.mask
    stored = tl.load(tables.keys + slots, mask=known[:, None], other=0)
    slot = tl.max(tl.where(stored == h[:, None], slots, -1), 1)
    found = slot >= 0
    mean = tl.load(tables.entries + slot * VALUES_PER_LEVEL + MEAN, mask=found, other=0.0)
    count = tl.load(tables.entries + slot * VALUES_PER_LEVEL + LOG_COUNT, mask=found, other=0.0)
    depth = tl.load(tables.entries + slot * VALUES_PER_LEVEL + DEPTH, mask=found, other=0.0)
    # These levels have no parent but the base, of neural and of n-gram drafts.
    root = (level == AFTER_1) | (level == FIRST)
    source = tl.where(level == FIRST, OF_NGRAM, OF_NEURAL)
    mean = tl.where(root & (slot < 0), tl.load(tables.base + source), mean)
    depth = tl.where(root & (slot < 0), tl.load(tables.base + 2 + source), depth)
    of_first = (level == AFTER_LAST) | (level == FIRST_TWO)
    parent = tl.where(of_first, FIRST, tl.where(level == AFTER_3, AFTER_2, AFTER_1))
    settled = found | root
    for _ in tl.static_range(2):
        mean = tl.where(settled, mean, tl.gather(mean, parent, 0))
        depth = tl.where(settled, depth, tl.gather(depth, parent, 0))
    return mean, count, depth
