"""What is known of one request while it runs, and the trace rows that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.protocol import Floats, Ints
from adaspec.trace.schema import CONFIDENCES, LoggedStep, Request

SOURCES = ("none", "ngram", "neural", "splice")


def source_of(neural_len: int, ngram_len: int) -> str:
    """Who drafted so many tokens."""
    return SOURCES[2 * (neural_len > 0) + (ngram_len > 0)]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step's proposal for one request, and what is known of its outcome."""

    position: int
    context_tokens: int
    running: int
    neural_len: int
    ngram_len: int
    tokens: list[int]
    step_s: float | None
    """Modelled."""
    accepted: int | None
    """None where nothing was verified: it is told from the tokens that came."""


@dataclass(slots=True)
class Transcript:
    """One request's text and drafts so far."""

    workload: str
    id: str
    prompt: Ints
    recorded: bool = False
    """Its drafts are shadow drafts: a dense row is to be made."""
    output: list[int] = field(default_factory=list)
    drafts: list[tuple[Ints, Floats]] = field(default_factory=list)
    """Drafted tokens and confidences at positions 1, 2, .."""
    plans: list[Plan] = field(default_factory=list)
    position: int = 0
    torn: bool = False
    """A position was missed: no dense row can be made, and `output` has a gap."""

    def goes_on(self, position: int, tail: Ints) -> None:
        """Take in the text up to `position`, whose last tokens `tail` ends with."""
        fresh = position - self.position
        if fresh <= 0 or fresh > len(tail):
            self.torn |= fresh != 0
        else:
            self.output += tail[len(tail) - fresh :].tolist()
        self.position = position

    def drafted(self, tokens: Ints, confidences: Floats, cap: int) -> None:
        """Take in what was drafted at the present position."""
        if len(tokens) != cap or self.position != len(self.drafts) + 1:
            self.torn = True
        self.drafts.append((tokens, confidences))

    def dense(self, cap: int) -> Request | None:
        """The request as a dense trace holds it; None where positions are missing.

        accepted at a position = the common prefix of its draft and the tokens that came.
        """
        length = len(self.output)
        if self.torn or not self.recorded or not 0 < length <= len(self.drafts) + 1:
            return None
        output = np.array(self.output, np.int32)
        if not cap:
            return Request(self.workload, self.id, self.prompt, output)
        drafted = np.full((length, cap), -1, np.int32)
        confidences = np.full((length, cap, len(CONFIDENCES)), np.nan, np.float32)
        for position, (tokens, sure) in enumerate(self.drafts[: length - 1], 1):
            drafted[position], confidences[position] = tokens, sure
        confidences[~np.isfinite(confidences)] = np.nan
        accepted = common_prefix(drafted, output)
        accepted[0] = -1
        return Request(self.workload, self.id, self.prompt, output, accepted, drafted, confidences)

    def logged(self, propensity: float | None) -> list[LoggedStep]:
        """The request's steps as a logged trace holds them, without those whose end is unknown.

        Its text stands at the first, where all of it is known: training needs it.
        """
        steps: list[LoggedStep] = []
        known = not self.torn and 0 < len(self.output) == self.position
        for plan in self.plans:
            accepted = self._came(plan) if plan.accepted is None else plan.accepted
            if accepted is None:
                continue
            steps.append(
                LoggedStep(
                    workload=self.workload,
                    id=self.id,
                    step=len(steps),
                    draft_len=len(plan.tokens),
                    accepted=accepted,
                    source=source_of(plan.neural_len, plan.ngram_len),
                    position=plan.position,
                    context_tokens=plan.context_tokens,
                    running=plan.running,
                    neural_len=plan.neural_len,
                    ngram_len=plan.ngram_len,
                    output_len=self.position or None,
                    propensity=propensity,
                    step_s=plan.step_s,
                    drafted_tokens=np.array(plan.tokens, np.int32),
                    prompt_tokens=self.prompt if known and not steps else None,
                    output_tokens=np.array(self.output, np.int32) if known and not steps else None,
                )
            )
        return steps

    def _came(self, plan: Plan) -> int | None:
        """How much of a plan the text goes on with; None where it ends before that shows."""
        if self.torn:  # behind the gap, positions are not the output's
            return None
        came = self.output[plan.position : plan.position + len(plan.tokens)]
        accepted = 0
        while accepted < len(came) and came[accepted] == plan.tokens[accepted]:
            accepted += 1
        ended = accepted == len(came) < len(plan.tokens) or plan.position >= len(self.output)
        return None if ended else accepted


def common_prefix(drafted: Ints, output: Ints) -> NDArray[np.int16]:
    """Per position, how many drafted tokens the output goes on with, up to its end."""
    length, cap = drafted.shape
    follows = np.full(length + cap, -2, np.int32)
    follows[:length] = output
    windows = np.lib.stride_tricks.sliding_window_view(follows, cap)[:length]
    accepted: NDArray[np.int16] = (drafted == windows).cumprod(axis=1).sum(axis=1).astype(np.int16)
    return accepted
