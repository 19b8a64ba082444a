"""Where kernels find each other's results: columns of their buffers, and sizes they are padded to.

Kernels read and write whole tiles, whose sides are powers of two, so rows of buffers are that long.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from adaspec.draft import chains, ring
from adaspec.policy import choice
from adaspec.predict import features, model

MAX_MATCH = tl.constexpr(chains.LONGEST_MATCH)
MOST_OCCURRENCES = tl.constexpr(chains.MOST_OCCURRENCES)
IN_RING = tl.constexpr(chains.IN_RING)
LONGEST_COPY = tl.constexpr(ring.LONGEST_COPY)
TIMES = tl.constexpr(ring.TIMES)
CANDIDATE = tl.constexpr(features.CANDIDATE)
LONGEST_NGRAM, LONGEST_NEURAL, LONGEST_SPLICE = map(tl.constexpr, model.LONGEST.values())
SPLICE_WEIGHT = tl.constexpr(choice.SPLICE_WEIGHT)
SPLICE_TOKENS = tl.constexpr(choice.SPLICE_TOKENS)
LAST, ONE_MORE, ALL, GAINS = map(tl.constexpr, range(4))

NGRAM_LANES, NEURAL_LANES, SPLICE_LANES = map(tl.constexpr, (64, 16, 32))
"""At least one more than the longest drafts."""
FEATURE_LANES, LEVEL_LANES, HEAD_LANES = map(tl.constexpr, (64, 8, 8))
"""At least what any network reads, the levels of the token tables, and the heads of a network."""

PRICE, NGRAM, NEURAL, SPLICE = map(tl.constexpr, range(4))
"""What the host decided for the batch: `Step.settings`."""

CONTEXT, POSITION, MATCH = map(tl.constexpr, range(3))
"""The match, by the fields below."""
CANDIDATE_AT = tl.constexpr(8)
"""The candidate's tokens."""
MATCHING_TOKENS = tl.constexpr(16)
SPLICE_MATCHES = tl.constexpr(17)
"""The matches behind drafted tokens, one behind another."""
FACTS = tl.constexpr(65)
"""How many int64 facts there are of a row."""

SPLICE_AT = tl.constexpr(0)
"""The curves of splices, by depth."""
NEURAL_AT = tl.constexpr(SPLICE_AT.value + NEURAL_LANES.value * SPLICE_LANES.value)
NGRAM_AT = tl.constexpr(NEURAL_AT.value + NEURAL_LANES.value)
EXPECTED_AT = tl.constexpr(NGRAM_AT.value + NGRAM_LANES.value)
"""What a splice is worth before its match is known."""
LEAST_AT = tl.constexpr(EXPECTED_AT.value + 1)
"""The least log-probability and margin so far."""
CURVES = tl.constexpr(LEAST_AT.value + 2)
"""How many float64 numbers: what is expected of its drafts."""

LENGTH, START, VOTES, OCCURRENCES, AVAILABLE, FOLLOWER, MATCH_FACTS = map(tl.constexpr, range(7))
"""The fields of a match (`draft.chains`), the token there, and how many columns these are."""

PLACE_BITS = tl.constexpr(25)
PLACE_MASK = tl.constexpr((1 << PLACE_BITS.value) - 1)
"""A place in a text; how many tokens are repeated before it lies above these bits."""


class RowBuffers(NamedTuple):
    """What kernels leave for each other of the rows of a step, allocated once."""

    facts: Tensor
    """(rows, FACTS) int64."""
    curves: Tensor
    """(rows, CURVES) float64."""
    holds: Tensor
    decides: Tensor
    """(rows,) bool."""
    keys: Tensor
    ring_keys: Tensor
    """(rows, splits * MOST_OCCURRENCES) int32: the best places that each program of the last scan
    found, in the texts and in the ring."""
    drafts: Tensor
    """(rows, LONGEST_NEURAL) int32: the drafted tokens."""

    @classmethod
    def allocate(cls, rows: int, splits: int, device: torch.device) -> RowBuffers:
        """Room for so many rows."""

        def new(dtype: torch.dtype, *columns: int) -> Tensor:
            return torch.zeros((rows, *columns), dtype=dtype, device=device)

        return cls(
            facts=new(torch.int64, FACTS.value),
            curves=new(torch.float64, CURVES.value),
            holds=new(torch.bool),
            decides=new(torch.bool),
            keys=new(torch.int32, splits * MOST_OCCURRENCES.value),
            ring_keys=new(torch.int32, splits * MOST_OCCURRENCES.value),
            drafts=new(torch.int32, LONGEST_NEURAL.value),
        )
