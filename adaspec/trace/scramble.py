"""Scrambles token ids by a secret permutation, which keeps n-gram structure but hides the text.

This is a substitution cipher, not anonymisation: anyone who knows the language can attack it by
token frequencies. It only keeps a trace from being read by accident or at a casual look.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import TraceError
from adaspec.trace.schema import Request

Tokens = NDArray[np.int32]

_LEAST_SECRET = 16


def scramble_ids(tokens: NDArray[Any], secret: bytes, vocab_size: int) -> Tokens:
    """`tokens` mapped by the permutation of [0, vocab_size) that `secret` selects; -1 stays -1."""
    return _mapped(tokens, _permutation(secret, vocab_size))


def unscramble_ids(tokens: NDArray[Any], secret: bytes, vocab_size: int) -> Tokens:
    """The tokens that `scramble_ids`, with the same secret and size, turned into `tokens`."""
    return _mapped(tokens, np.argsort(_permutation(secret, vocab_size)).astype(np.int32))


def scramble_request(request: Request, secret: bytes, vocab_size: int) -> Request:
    """`request` with prompt, output and drafted tokens scrambled alike; its id stays."""
    drafted = request.drafted_tokens
    return replace(
        request,
        prompt_tokens=scramble_ids(request.prompt_tokens, secret, vocab_size),
        output_tokens=scramble_ids(request.output_tokens, secret, vocab_size),
        drafted_tokens=None if drafted is None else scramble_ids(drafted, secret, vocab_size),
    )


def _mapped(tokens: NDArray[Any], permutation: Tokens) -> Tokens:
    outside = (tokens < -1) | (tokens >= len(permutation))
    if outside.any():
        raise TraceError(
            f"token id {tokens[outside].flat[0]} is outside the vocabulary of {len(permutation)}: "
            "give the size of the target's embedding, padding included"
        )
    # Index -1 takes the last entry, which is the -1 appended here.
    mapped: Tokens = np.append(permutation, np.int32(-1))[tokens]
    return mapped


@lru_cache(maxsize=2)
def _permutation(secret: bytes, vocab_size: int) -> Tokens:
    """The ranks of one keyed pseudo-random number per token, the same on every machine and release.

    (A seeded numpy generator does not promise the same stream across numpy versions.)
    """
    if len(secret) < _LEAST_SECRET:
        raise TraceError(
            f"the secret has {len(secret)} bytes, at least {_LEAST_SECRET} are needed: "
            "take it from secrets.token_bytes(32)"
        )
    stream = hashlib.shake_256(b"adaspec scramble 1" + len(secret).to_bytes(8, "big") + secret)
    keys = np.frombuffer(stream.digest(8 * vocab_size), dtype="<u8")
    permutation: Tokens = np.argsort(keys, kind="stable").astype(np.int32)
    permutation.setflags(write=False)
    return permutation
