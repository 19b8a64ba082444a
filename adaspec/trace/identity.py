"""What identifies a request, its dialogue, a vocabulary or a model, from wherever it was recorded.

A later turn of a dialogue has a prompt that begins with an earlier one's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from adaspec.trace.schema import Request

HASH_DIGITS = 16


def request_hash(prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> str:
    """A hash of a request's content in 16 hex digits: equal for equal tokens on every platform."""
    prompt, output = (np.asarray(tokens, "<i8") for tokens in (prompt_tokens, output_tokens))
    # The length of the prompt comes first, so that it is clear where the output begins.
    content = len(prompt).to_bytes(8, "little") + prompt.tobytes() + output.tobytes()
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS]


def vocabulary_hash(vocabulary: Mapping[str, int]) -> str:
    """The number of tokens in a tokenizer's `get_vocab()`, and a hash of them with their ids."""
    # Some tokenizers have their tokens as bytes.
    pairs = sorted((int(id), str(token)) for token, id in vocabulary.items())
    content = json.dumps(pairs, separators=(",", ":")).encode()
    return f"{len(pairs)}-{hashlib.sha256(content).hexdigest()[:HASH_DIGITS]}"


def model_name(model: str) -> str:
    """What traces call a model: its hub id, or its folder's whole path, so that it has one name."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


class Dialogues:
    """Finds which requests begin with the whole prompt of another, as later turns do."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._numbers: dict[bytes, list[int]] = {}
        for number, each in enumerate(requests):
            self._numbers.setdefault(each.prompt_tokens.tobytes(), []).append(number)
        self._lengths = sorted({len(each.prompt_tokens) for each in requests})

    def earlier_turns(self, request: Request) -> Iterator[int]:
        """The requests that it is a later turn of, the first turn first."""
        prompt = request.prompt_tokens
        for length in self._lengths:
            if 0 < length < len(prompt):
                yield from self._numbers.get(prompt[:length].tobytes(), ())


def dialogue_hashes(requests: Sequence[Request]) -> list[str]:
    """A hash for each request: the least content hash of its dialogue's first turns, or its own."""
    dialogues = Dialogues(requests)
    prompts = [each.prompt_tokens.tobytes() for each in requests]
    own = [request_hash(each.prompt_tokens, each.output_tokens) for each in requests]
    turns = [next(dialogues.earlier_turns(each), None) for each in requests]
    begun = {prompts[turn] for turn in turns if turn is not None}
    least: dict[bytes, str] = {}
    for prompt, content in zip(prompts, own, strict=True):
        least[prompt] = min(content, least.get(prompt, content))
    first = [at if turn is None else turn for at, turn in enumerate(turns)]
    return [
        least[prompts[at]] if prompts[at] in begun else content
        for at, content in zip(first, own, strict=True)
    ]


def prompt_hashes(requests: Sequence[Request]) -> list[str]:
    """The same without regard to answers: also the same for all answers to one prompt."""
    bare = [replace(each, output_tokens=each.output_tokens[:0]) for each in requests]
    return dialogue_hashes(bare)
