"""What makes a request the same request, wherever and under whatever name it was recorded."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike

HASH_DIGITS = 16


def request_hash(prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> str:
    """16 hex digits of a request's content: equal tokens give equal digits on every platform."""
    prompt, output = (
        # From whatever width of integers to one; a float is a caller's mistake, a TypeError.
        np.asarray(tokens, np.int64 if np.size(tokens) == 0 else None).astype("<i8", casting="safe")
        for tokens in (prompt_tokens, output_tokens)
    )
    # The prompt's length keeps prompt and output apart.
    content = len(prompt).to_bytes(8, "little") + prompt.tobytes() + output.tobytes()
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS]
