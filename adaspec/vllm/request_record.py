"""Collects the record of one request while it runs, and turns it into the row of a trace.

A client can name a request's workload and id by setting the request id to `adaspec:WORKLOAD:ID:`,
both percent-encoded (over HTTP, in the header X-Request-Id). An engine may put other text around
that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import numpy as np

from adaspec.policy.protocol import Floats, Ints
from adaspec.trace.schema import CONFIDENCES, Request

if TYPE_CHECKING:  # it needs PyTorch, and names of requests do not
    from adaspec.vllm.session.requests import RunningRequest

SERVED = "served"
"""The workload of requests that their clients did not name."""

_NAMED = re.compile(r"adaspec:([^:]+):([^:]+):")


def engine_id(workload: str, id: str) -> str:
    """The request id that makes an engine record a request as (workload, id)."""
    return f"adaspec:{quote(workload, safe='')}:{quote(id, safe='')}:"


def trace_key(request: str) -> tuple[str, str]:
    """The (workload, id) of an engine's request id."""
    match = _NAMED.search(request)
    return (SERVED, request) if match is None else (unquote(match[1]), unquote(match[2]))


@dataclass(slots=True)
class RequestRecord:
    """One request, by its name in a trace, and its drafts so far."""

    workload: str
    id: str
    request: RunningRequest
    drafts: dict[int, tuple[Ints, Floats]] = field(default_factory=dict)
    """The drafted tokens and confidences by position."""

    def row(self, output: list[int], is_whole: bool, cap: int) -> Request | None:
        """The request's row with this output; None if drafts are missing.

        Where the output is not whole, as the request was aborted, its own length was its limit:
        nobody knows how the model would have gone on. The `accepted` of a position is the length
        of the common prefix of its draft and the tokens that follow.
        """
        length, text = len(output), np.array(output, np.int32)
        limit = self.request.max_tokens if is_whole else length
        row = Request(self.workload, self.id, self.request.prompt, text, max_tokens=limit)
        if not length or not cap:
            return row if length else None
        drafted = np.full((length, cap), -1, np.int32)
        confidences = np.full((length, cap, len(CONFIDENCES)), np.nan, np.float32)
        for position in range(1, length):
            draft = self.drafts.get(position)
            if draft is None or len(draft[0]) != cap:
                return None
            drafted[position], confidences[position] = draft
        confidences[~np.isfinite(confidences)] = np.nan
        following = np.full(length + cap, -2, np.int32)
        following[:length] = output
        windows = np.lib.stride_tricks.sliding_window_view(following, cap)[:length]
        accepted = (drafted == windows).cumprod(axis=1).sum(axis=1).astype(np.int16)
        accepted[0] = -1
        return replace(
            row, neural_accepted=accepted, drafted_tokens=drafted, confidences=confidences
        )
