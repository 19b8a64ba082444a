"""What identifies a request, a vocabulary or a model, from wherever it was recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

HASH_DIGITS = 16


def request_hash(prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> str:
    """A hash of a request's content in 16 hex digits: equal for equal tokens on every platform."""
    prompt, output = (np.asarray(tokens, "<i8") for tokens in (prompt_tokens, output_tokens))
    # The length of the prompt comes first, so that it is clear where the output begins.
    content = len(prompt).to_bytes(8, "little") + prompt.tobytes() + output.tobytes()
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS]


VocabularyHash = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]{0,8}(-[0-9a-f]{16})?\Z",
        description="a count, alone or with '-' and 16 hex digits",
    ),
]
"""What `vocabulary_hash` returns; the count alone where no tokenizer was at hand."""


def vocabulary_hash(vocabulary: Mapping[str, int]) -> str:
    """The number of tokens in a tokenizer's `get_vocab()`, and a hash of them with their ids."""
    # Some tokenizers have their tokens as bytes.
    pairs = sorted((int(id), str(token)) for token, id in vocabulary.items())
    content = json.dumps(pairs, separators=(",", ":")).encode()
    return f"{len(pairs)}-{hashlib.sha256(content).hexdigest()[:HASH_DIGITS]}"


def model_name(model: str) -> str:
    """What traces call a model: its hub id, or its folder's whole path, so that it has one name."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
