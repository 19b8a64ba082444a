"""Made-up contexts that repeat as real ones do, with frequent words and copied spans."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 32_000
COPIES_PER_TOKEN = 0.03
MEAN_COPY = 25.0
DISTINCT = 8


def make_contexts(count: int, tokens: int, seed: int) -> NDArray[np.int32]:
    """Make `count` different contexts of that many tokens; the seed determines them.

    Words follow Zipf's law, and about every 30th starts a copy of some 25 earlier tokens. Per
    token, this gives about the matches, nodes and table entries of recorded chats and code edits.
    After the first few, each context is an earlier one with its words replaced by others, which
    costs the same to index.
    """
    generator = np.random.default_rng(seed)
    distinct_contexts = [_draw(tokens, generator) for _ in range(min(count, DISTINCT))]
    contexts = np.empty((count, tokens), np.int32)
    for row in range(count):
        words = distinct_contexts[row % DISTINCT]
        if row >= DISTINCT:
            words = generator.permutation(VOCABULARY).astype(np.int32)[words]
        contexts[row] = words
    return contexts


def _draw(tokens: int, generator: np.random.Generator) -> NDArray[np.int32]:
    shares = 1.0 / np.arange(1, VOCABULARY + 1)
    cumulative = np.cumsum(shares) / shares.sum()
    fresh = np.searchsorted(cumulative, generator.random(tokens)).astype(np.int32)
    context = np.minimum(fresh, VOCABULARY - 1)
    position = int(generator.geometric(COPIES_PER_TOKEN))
    while position < tokens:
        span = min(int(generator.geometric(1 / MEAN_COPY)), position, tokens - position)
        source = int(generator.integers(0, position - span + 1))
        context[position : position + span] = context[source : source + span]
        position += span + int(generator.geometric(COPIES_PER_TOKEN))
    return context
