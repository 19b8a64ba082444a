"""Where kernels find each other's results: columns of their buffers, and sizes they are padded to.

Kernels read and write whole tiles, whose sides are powers of two, so rows of buffers are that long.
Beside that, how a device function names its twins on the host, and what several kernels do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaspec.draft import matches
from adaspec.policy import choice
from adaspec.predict import features, model

TWINS: dict[str, Callable[..., Any]] = {}
"""Host function, by its path in `adaspec` -> the device function that means it."""


def device(*twins: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a device function that means what these functions of the host say.

    Arguments of the same name stand in the same order in both.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        TWINS.update(dict.fromkeys(twins, function))
        return triton.jit(function, **options)

    return compiled


MAX_MATCH = tl.constexpr(matches.LONGEST_MATCH)
MOST_OCCURRENCES = tl.constexpr(matches.MOST_OCCURRENCES)
IN_RING = tl.constexpr(matches.IN_RING)
LONGEST_COPY = tl.constexpr(matches.LONGEST_COPY)
TIMES = tl.constexpr(matches.TIMES)
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
"""The fields of a match (`draft.matches`), the token there, and how many columns these are."""

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


@triton.jit
def lane(vector: tl.tensor, at: tl.tensor, lanes: tl.constexpr) -> tl.tensor:
    """The vector's number in a lane."""
    return tl.sum(tl.where(tl.arange(0, lanes) == at, vector, 0.0), 0)


@triton.jit
def side_by_side(features: tl.tuple, others: tl.tensor) -> tl.tensor:
    """(FEATURE_LANES,) float32: the features in order, and behind them the lanes of others."""
    x, lanes = others.to(tl.float32), tl.arange(0, FEATURE_LANES)
    for at in tl.static_range(len(features)):
        x = tl.where(lanes == at, features[at].to(tl.float32), x)
    return x


@triton.jit
def noted(facts: tl.tensor, match: tl.tuple) -> None:
    """Store a match, fact by fact."""
    for at in tl.static_range(MATCH_FACTS):
        tl.store(facts + at, match[at])


@triton.jit
def match_at(facts: tl.tensor) -> tl.tuple:
    """The match that `noted` stored."""
    length, start, votes = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2)
    return length, start, votes, tl.load(facts + 3), tl.load(facts + 4), tl.load(facts + 5)


@triton.jit
def shifted(number: tl.tensor, bits: tl.constexpr) -> tl.tensor:
    """A shift to the right that fills in zeros."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)
