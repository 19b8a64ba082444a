"""Collects the record of one request while it runs, and turns it into trace rows.

A client can name a request's workload and id by setting the request id to `adaspec:WORKLOAD:ID:`,
both percent-encoded (over HTTP, in the header X-Request-Id). An engine may put other text around
that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.protocol import Floats, Ints
from adaspec.trace.schema import CONFIDENCES, LoggedStep, Request

SERVED = "served"
"""The workload of requests that their clients did not name."""
UNKNOWN = -1
"""The `accepted` of a step that was not verified, to be counted from the tokens that follow."""

_NAMED = re.compile(r"adaspec:([^:]+):([^:]+):")
_SAMPLE = re.compile(r"^(\d+)_")


def engine_id(workload: str, id: str) -> str:
    """The request id that makes an engine record a request as (workload, id)."""
    return f"adaspec:{quote(workload, safe='')}:{quote(id, safe='')}:"


def trace_key(request: str) -> tuple[str, str]:
    """The (workload, id) of an engine's request id."""
    match = _NAMED.search(request)
    if match is None:
        return SERVED, request
    sample = _SAMPLE.match(request)  # one of several samples of a prompt
    return unquote(match[1]), unquote(match[2]) + (f"#{sample[1]}" if sample else "")


def is_named(request: str) -> bool:
    """Whether a client named the request, which means that it can be recorded again."""
    return "adaspec:" in request


LAST = "adaspec:last"
"""The id of an extra request, which is not recorded: its only purpose is to make the recorder
notice that all others have left."""


@dataclass(slots=True)
class RequestRecord:
    """The text, drafts and steps of one request so far."""

    workload: str
    id: str
    prompt: Ints
    recorded: bool = False
    """Whether the drafts are shadow drafts, from which a dense row is made."""
    max_tokens: int | None = None
    greedy: bool = False
    """Whether the target takes the likeliest tokens: then the text tells which drafts are right."""
    output: list[int] = field(default_factory=list)
    drafts: list[tuple[Ints, Floats]] = field(default_factory=list)
    """The drafted tokens and confidences at positions 1, 2, .."""
    steps: list[LoggedStep] = field(default_factory=list)
    position: int = 0
    has_gap: bool = False
    """Whether a position was missed. If so, `output` has a gap and no dense row can be made."""

    def extend(self, position: int, tail: Ints) -> None:
        """Add the text up to `position`, which ends with the tokens `tail`."""
        count = position - self.position
        if count <= 0 or count > len(tail):
            self.has_gap |= count != 0
        else:
            self.output += tail[len(tail) - count :].tolist()
        self.position = position

    def add_draft(self, tokens: Ints, confidences: Floats, cap: int) -> None:
        """Add the draft at the current position."""
        if len(tokens) != cap or self.position != len(self.drafts) + 1:
            self.has_gap = True
        self.drafts.append((tokens, confidences))

    def dense_row(self, cap: int) -> Request | None:
        """The request's row in a dense trace; None if positions are missing.

        The `accepted` of a position is the length of the common prefix of its draft and the tokens
        that follow.
        """
        length = len(self.output)
        if self.has_gap or not self.recorded or not 0 < length <= len(self.drafts) + 1:
            return None
        output = np.array(self.output, np.int32)
        row = Request(self.workload, self.id, self.prompt, output, max_tokens=self.max_tokens)
        if not cap:
            return row
        drafted = np.full((length, cap), -1, np.int32)
        confidences = np.full((length, cap, len(CONFIDENCES)), np.nan, np.float32)
        for position, draft in enumerate(self.drafts[: length - 1], 1):
            drafted[position], confidences[position] = draft
        confidences[~np.isfinite(confidences)] = np.nan
        accepted = accepted_counts(drafted, output)
        accepted[0] = -1
        return replace(
            row, neural_accepted=accepted, drafted_tokens=drafted, confidences=confidences
        )

    def logged_rows(self) -> list[LoggedStep]:
        """The request's rows in a logged trace, without steps whose result is unknown.

        The first row has the request's text if all of it is known, because training needs it.
        """
        rows: list[LoggedStep] = []
        has_text = not self.has_gap and 0 < len(self.output) == self.position
        for step in self.steps:
            accepted = step.accepted if step.accepted != UNKNOWN else self._accepted(step)
            if accepted is None:
                continue
            row = replace(step, step=len(rows), accepted=accepted, output_len=self.position or None)
            if has_text and not rows:
                output = np.array(self.output, np.int32)
                row = replace(
                    row,
                    prompt_tokens=self.prompt,
                    output_tokens=output,
                    max_tokens=self.max_tokens,
                )
            rows.append(row)
        return rows

    def _accepted(self, step: LoggedStep) -> int | None:
        """How many tokens of a draft the text continues with; None if it ends too early to tell."""
        assert step.position is not None and step.drafted_tokens is not None
        if self.has_gap:  # after a gap, positions do not match the indices of `output`
            return None
        following = self.output[step.position : step.position + step.draft_len]
        accepted = common_prefix_len(following, step.drafted_tokens.tolist())
        ended = accepted == len(following) < step.draft_len or step.position >= len(self.output)
        return None if ended else accepted


def accepted_counts(drafted: Ints, output: Ints) -> NDArray[np.int16]:
    """How many drafted tokens the output continues with at each position, up to its end."""
    length, cap = drafted.shape
    following = np.full(length + cap, -2, np.int32)
    following[:length] = output
    windows = np.lib.stride_tricks.sliding_window_view(following, cap)[:length]
    accepted: NDArray[np.int16] = (drafted == windows).cumprod(axis=1).sum(axis=1).astype(np.int16)
    return accepted


def common_prefix_len(tokens: Sequence[int], others: Sequence[int]) -> int:
    """The length of the longest common prefix of two texts, in tokens."""
    count = 0
    for token, other_token in zip(tokens, others, strict=False):
        if token != other_token:
            break
        count += 1
    return count
