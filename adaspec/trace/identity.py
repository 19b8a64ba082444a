"""What makes a request, or a vocabulary, the same one, whatever name it was recorded under."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from adaspec.documents import matching

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


VOCABULARY_HASH = matching(r"[1-9][0-9]{0,8}-[0-9a-f]{16}", "a count and 16 hex digits")
"""The rule for what `vocabulary_hash` returns."""


def vocabulary_hash(vocabulary: Mapping[str, int]) -> str:
    """How many tokens a tokenizer knows, and 16 hex digits of which id each of them has.

    It takes what a tokenizer's `get_vocab()` says, added tokens included: vLLM, transformers and
    tokenizers say the same of one tokenizer.json, in whatever folder it lies.
    """
    # A few tokenizers know their tokens as bytes.
    pairs = sorted((int(id), str(token)) for token, id in vocabulary.items())
    content = json.dumps(pairs, separators=(",", ":")).encode()
    return f"{len(pairs)}-{hashlib.sha256(content).hexdigest()[:HASH_DIGITS]}"
