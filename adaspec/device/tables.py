"""The token tables of `predict.tables` as tensors, looked up for all rows and levels at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from adaspec.predict.tables import LEVELS, PARENT, SOURCE, Tables

FACTORS = tuple(
    number - (1 << 64) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of the tables' hash as signed numbers: products and sums wrap around alike."""
_ADDED, _FIRST_FACTOR, _SECOND_FACTOR = FACTORS
_NONE = -1


class DeviceTables:
    """The entries of `Tables` on a device."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        # A float64 mean becomes the float32 that a feature is.
        self._base = torch.from_numpy(tables.base.astype(np.float32)).to(device)
        self._keys = torch.from_numpy(tables.keys.view(np.int64)).to(device)
        figures = np.stack([tables.means, tables.counts, tables.depths], axis=1)
        self._figures = torch.from_numpy(figures).to(device)
        self._probes = torch.arange(longest_probe(tables.keys), device=device)
        self._salted = salted_levels(tables).to(device)

    def look_up(self, t1: Tensor, t2: Tensor, t3: Tensor, c1: Tensor, c2: Tensor) -> Tensor:
        """(rows, LEVELS, TOLD) what the tables say behind the last tokens t and at a candidate c.

        An unseen key gets its parent's mean and depth, and count 0.
        """
        none = torch.full_like(t1, _NONE)
        keys = torch.stack((t1, t1, t1, c1, c1, c1, c1), 1)
        seconds = torch.stack((none, t2, t2, none, t1, c2, t1), 1)
        thirds = torch.stack((none, none, t3, none, none, none, none), 1)
        both, pair = (c1 >= 0) & (t1 >= 0), (c1 >= 0) & (c2 >= 0)
        known = torch.stack((t1 >= 0, t2 >= 0, t3 >= 0, c1 >= 0, both, pair, both), 1)
        hashes = self._salted
        for tokens in (keys, seconds, thirds):
            hashes = _mixed(hashes, tokens + 2)
        found, figures = self._find(hashes | 1)
        found = (found & known)[:, :, None]
        told: list[Tensor] = []
        for level in range(LEVELS):
            parent, source = PARENT[level], SOURCE[level]
            if parent < 0:
                mean, depth = self._base[source], self._base[2 + source]
                mean, depth = mean.expand(len(t1)), depth.expand(len(t1))
            else:
                mean, depth = told[parent][:, 0], told[parent][:, 2]
            unseen = torch.stack((mean, torch.zeros_like(mean), depth), 1)
            told.append(torch.where(found[:, level], figures[:, level], unseen))
        return torch.stack(told, 1)

    def look_up_copy(self, before: Tensor, token: Tensor) -> Tensor:
        """(rows, 3) the figures for a token copied behind `before`, NaN if it is not known."""
        none = torch.full_like(token, _NONE)
        told = self.look_up(before, none, none, token, none)
        figures = torch.stack((told[:, 3, 0], told[:, 4, 0], told[:, 4, 1]), 1)
        return figures.where((token >= 0)[:, None], torch.nan)

    def _find(self, hashes: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each key is in the table, and the figures of those that are."""
        mask = self._keys.shape[0] - 1
        # An arithmetic shift fills in bits that the mask removes.
        slots = ((hashes >> 1)[..., None] + self._probes) & mask
        hits = self._keys[slots] == hashes[..., None]
        return hits.any(-1), self._figures[(slots * hits).sum(-1)]


def salted_levels(tables: Tables) -> Tensor:
    """(LEVELS,) the hashes that the keys of each level begin with."""
    salt = torch.full((LEVELS,), int(tables.salt.view(np.int64)[0]))
    return _mixed(salt, torch.arange(1, LEVELS + 1))


def _mixed(h: Tensor, value: Tensor) -> Tensor:
    h = (h ^ (value + _ADDED)) * _FIRST_FACTOR
    h = (h ^ _shifted(h, 29)) * _SECOND_FACTOR
    return h ^ _shifted(h, 32)


def _shifted(h: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills in zeros."""
    return (h >> bits) & ((1 << (64 - bits)) - 1)


def longest_probe(keys: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> int:
    """How many slots a search looks at until it finds any key that is in the table."""
    slots = np.flatnonzero(keys)
    mask = np.uint64(len(keys) - 1)
    first = (keys[slots] >> np.uint64(1)) & mask
    return int(((slots.astype(np.uint64) - first) & mask).max(initial=0)) + 1
