"""Random recordings of every kind of trace that a learned policy meets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from random_recordings import random_requests, recording_of
from reference import Request

from adaspec.replay.recording import Recording

KINDS = ("bare", "tokens", "confidences", "no drafter")


def random_recording(seed: int, kind: str, requests: int = 6, neural_cap: int = 5) -> Recording:
    found = random_requests(
        seed, requests, tokens=kind in ("tokens", "confidences"), neural_cap=neural_cap
    )
    if kind == "tokens":
        found = [stuttering(request, seed) for request in found]
    if kind == "no drafter":
        return recording_of(found, 0)
    return recording_of(found, neural_cap, seed=seed if kind == "confidences" else None)


def stuttering(request: Request, seed: int) -> Request:
    """The same request, fewer tokens drafted at some positions."""
    rng = np.random.default_rng(seed)
    assert request.drafted is not None
    drafted, accepted = [], []
    for draft, count in zip(request.drafted, request.accepted, strict=True):
        kept = int(rng.integers(0, len(draft) + 1)) if rng.random() < 0.4 else len(draft)
        drafted.append([*draft[:kept], *[-1] * (len(draft) - kept)])
        accepted.append(min(count, kept))
    return replace(request, drafted=drafted, accepted=accepted)
