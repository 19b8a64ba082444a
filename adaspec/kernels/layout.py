"""Where kernels find each other's results: columns of their buffers, and sizes they are padded to.

Kernels read and write whole tiles, whose sides are powers of two, so rows of buffers are that long.
"""

from __future__ import annotations

import triton.language as tl

from adaspec.draft import trie
from adaspec.policy.planner import memory
from adaspec.predict import features

MAX_MATCH = tl.constexpr(trie.MAX_MATCH)
RING = tl.constexpr(trie.RING)
CANDIDATE = tl.constexpr(features.CANDIDATE)
LONGEST_NEURAL = tl.constexpr(memory.LONGEST_NEURAL)
LONGEST_NGRAM = tl.constexpr(memory.LONGEST_NGRAM)
LONGEST_SPLICE = tl.constexpr(memory.LONGEST_SPLICE)
FEATURES = tl.constexpr(features.FEATURES)

NEURAL_LANES = tl.constexpr(16)
"""At least LONGEST_NEURAL + 1."""
NGRAM_LANES = tl.constexpr(64)
"""At least LONGEST_NGRAM + 1."""
SPLICE_LANES = tl.constexpr(32)
"""At least LONGEST_SPLICE + 1."""
FEATURE_LANES = tl.constexpr(64)
"""At least FEATURES, and at least as many as other networks read."""
LEVEL_LANES = tl.constexpr(8)
"""At least the levels of the token tables."""
HEAD_LANES = tl.constexpr(8)
"""At least the heads of a network."""

CONTEXT = tl.constexpr(0)
PROMPT = tl.constexpr(1)
POSITION = tl.constexpr(2)
TAIL = tl.constexpr(3)
"""The last three tokens."""
MATCH = tl.constexpr(6)
"""The match, by the fields below."""
FIRST = tl.constexpr(12)
"""The candidate's tokens."""
FACTS = tl.constexpr(20)
"""The int64 facts of a row."""

LENGTH = tl.constexpr(0)
START = tl.constexpr(1)
AGREE = tl.constexpr(2)
SEEN = tl.constexpr(3)
AVAILABLE = tl.constexpr(4)
FOLLOWER = tl.constexpr(5)
MATCH_FACTS = tl.constexpr(6)
"""The fields of a match (`draft.scan`), and the token there."""

PLACE_BITS = tl.constexpr(25)
PLACE_MASK = tl.constexpr((1 << PLACE_BITS.value) - 1)
"""A place in a text; how many tokens are repeated before it lies above these bits."""
