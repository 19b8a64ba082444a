"""Which requests are drafted for: a fraction of all, without those whose clients say `off`.

A client says it by `{"adaspec": "off"}`, as `vllm_xargs` over HTTP or as
`SamplingParams.extra_args` in Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from adaspec.errors import ServingError, nearest, shown

KEY, OFF = "adaspec", "off"


def is_served(request: str, params: Any, serve_fraction: float) -> bool:
    """Whether a request with these sampling parameters is drafted for.

    Raises a `ServingError` if it says anything but `off`.
    """
    says_off = is_off(getattr(params, "extra_args", None))
    return not says_off and is_chosen(request, serve_fraction, b"serve")


def is_off(extra_args: Mapping[str, Any] | None) -> bool:
    """Whether extra arguments say that nothing is to be drafted; a `ServingError` if not just so.

    Arguments that do not begin with `adaspec` are others'.
    """
    given = {key: value for key, value in (extra_args or {}).items() if key.startswith(KEY)}
    for key, value in given.items():
        if key != KEY:
            raise ServingError(f"unknown argument {shown(key)}{nearest(key, [KEY])}; known: {KEY}")
        if value != OFF:
            raise ServingError(f"{KEY} is {shown(value)}: give '{OFF}', or leave it out")
    return bool(given)


def is_rehearsed(name: str) -> bool:
    """Whether a request is nobody's: vLLM's own, by which it warms up as it starts."""
    return name.startswith("_warmup_")


def is_chosen(request: str, fraction: float, salt: bytes = b"") -> bool:
    """Whether a request is in a fraction of all; its id decides, so that all ranks agree."""
    digest = hashlib.blake2b(request.encode(), digest_size=8, person=salt).digest()
    return int.from_bytes(digest, "big") < fraction * 2.0**64
