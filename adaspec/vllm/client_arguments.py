"""What a request's own extra arguments allow to be drafted for it.

A client gives them as `vllm_xargs` over HTTP, or as `SamplingParams.extra_args` in Python:

    adaspec             "serve" or "off"
    adaspec_cap         the most tokens of one draft
    adaspec_source      "ngram" or "neural": nothing but that source drafts
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adaspec.documents import Rule, one_of, whole
from adaspec.errors import ServingError, nearest, shown
from adaspec.vllm.options import MAX_VERIFIED

RULES: dict[str, Rule] = {
    "adaspec": one_of(("serve", "off")),
    "adaspec_cap": whole(0, MAX_VERIFIED),
    "adaspec_source": one_of(("ngram", "neural")),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be drafted for one request."""

    most_tokens: int = MAX_VERIFIED
    """The most tokens of one draft."""
    copies: bool = True
    """Whether tokens may be copied."""
    drafter: bool = True
    """Whether the request may hold the neural drafter."""


UNLIMITED = Limits()
NOTHING = Limits(0, copies=False, drafter=False)


def limits_of(request: str, params: Any, serve_fraction: float) -> Limits:
    """The limits of a request with these sampling parameters; a `ServingError` if any is wrong.

    Of the requests that do not say whether they are to be served, `serve_fraction` are.
    """
    asked = asked_of(getattr(params, "extra_args", None))
    serve = asked.get("adaspec")
    if serve is None and serve_fraction < 1:
        serve = "serve" if is_chosen(request, serve_fraction, b"serve") else "off"
    cap, source = asked.get("adaspec_cap", MAX_VERIFIED), asked.get("adaspec_source")
    if serve == "off" or cap == 0:
        return NOTHING
    if cap == MAX_VERIFIED and source is None:
        return UNLIMITED
    return Limits(cap, copies=source != "neural", drafter=source != "ngram")


def asked_of(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """What extra arguments say to adaspec; raises a `ServingError` if any of that is wrong."""
    asked: dict[str, Any] = {}
    for key, value in (extra_args or {}).items():
        if not key.startswith("adaspec"):
            continue
        rule = RULES.get(key)
        if rule is None:
            known = ", ".join(RULES)
            raise ServingError(
                f"unknown argument {shown(key)}{nearest(key, RULES)}; known: {known}"
            )
        if not rule.holds(value):
            raise ServingError(f"{key} is {shown(value)}: give {rule.expected}")
        asked[key] = value
    return asked


def is_chosen(request: str, fraction: float, salt: bytes = b"") -> bool:
    """Whether a request is in a fraction of all; its id decides, so that all ranks agree."""
    digest = hashlib.blake2b(request.encode(), digest_size=8, person=salt).digest()
    return int.from_bytes(digest, "big") < fraction * 2.0**64
