"""Logged traces laid out flat: each request's text and its steps, to learn from and to judge by.

A logged request is of use only if its text is known (`prompt_tokens` and `output_tokens`
at its first step), and every step has its position and the number of neural tokens in its draft.
Requests that lack one of these are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import AdaspecError
from adaspec.replay.recording import Recording, build_recording
from adaspec.trace.reader import Paths, TraceReader, paths_of
from adaspec.trace.schema import LoggedStep, Request

Ints = NDArray[np.int32]

STEP = np.dtype(
    [
        ("position", "i4"),
        ("neural_len", "i4"),
        ("drafted", "i4"),
        ("accepted", "i4"),
        ("shown", "i4"),
        ("right", "i4"),
        ("running", "i4"),
    ]
)
"""One step. `drafted` and `accepted` are of the whole draft, neural or not. Of `shown` neural
tokens, at least those verified, the log shows whether they are right, and `right` of these are,
one after another. `running` is the number of requests in the engine's batch, 0 if not known."""


class LoggedRequest(NamedTuple):
    """One request's text, and its steps in order."""

    request: Request
    steps: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Log:
    """Requests laid out flat, and all of their steps one after another."""

    recording: Recording
    """The requests as texts: what became of neural drafts is said by the steps."""
    steps: NDArray[Any]
    first: NDArray[np.int64]
    """Index of each request's first step, and the number of steps at the end."""

    @property
    def request(self) -> Ints:
        """Each step's request."""
        return np.repeat(np.arange(len(self.recording)), np.diff(self.first)).astype(np.int32)

    @property
    def at(self) -> NDArray[np.int64]:
        """Each step's flat position."""
        return self.recording.columns.offset[self.request] + self.steps["position"]

    @property
    def left(self) -> Ints:
        """Tokens of the output that each step does not know yet."""
        left = self.recording.columns.length[self.request] - self.steps["position"]
        return left.astype(np.int32)

    def reached(self, token: int) -> NDArray[np.bool_]:
        """Whether each step shows what became of its neural token number `token`, from 1 on."""
        shown, right = self.steps["shown"], self.steps["right"]
        return (shown >= token) & (right >= token - 1) & (self.left > token)


def are_logged(traces: Paths, error: type[AdaspecError], use: str) -> bool:
    """True if these are logged traces, False if dense; a mixture of both is refused."""
    readers = [TraceReader(path) for path in paths_of(traces)]
    kinds = {reader.manifest.kind: reader.path for reader in readers}
    if len(kinds) > 1:
        raise error(
            f"{kinds['logged']} is a logged trace, {kinds['dense']} a dense one: {use} one kind "
            "(a dense trace says all that a logged one does, and what was not tried)"
        )
    return "logged" in kinds


def read_logged(
    readers: Sequence[TraceReader], error: type[AdaspecError]
) -> tuple[list[LoggedRequest], dict[str, Counter[str]]]:
    """The requests of use, and the number of the others by workload and reason; `error` if none."""
    requests: list[LoggedRequest] = []
    left_out: dict[str, Counter[str]] = {}
    for reader in readers:
        steps: dict[tuple[str, str], list[LoggedStep]] = {}
        for step in reader.steps():
            steps.setdefault((step.workload, step.id), []).append(step)
        for (workload, _), steps_of_one in steps.items():
            logged = logged_request(steps_of_one)
            if isinstance(logged, str):
                left_out.setdefault(workload, Counter())[logged] += 1
            else:
                requests.append(logged)
    if not requests:
        counts = sum(left_out.values(), Counter())
        causes = [f"{count:,} {why}" for why, count in sorted(counts.items())]
        why = "; ".join(causes) or "no steps"
        raise error(
            f"{readers[0].path}: no request of this logged trace is of use ({why}): record with "
            "text, positions and sources, or record a dense trace"
        )
    return requests, left_out


def log_of(requests: Sequence[LoggedRequest]) -> Log:
    """The requests as flat arrays."""
    steps = [each.steps for each in requests]
    return Log(
        build_recording([each.request for each in requests], 0),
        np.concatenate(steps),
        np.cumsum([0, *map(len, steps)]),
    )


def logged_request(steps: list[LoggedStep]) -> LoggedRequest | str:
    """A request with its steps, or the reason why it cannot be used."""
    head = steps[0]
    if head.prompt_tokens is None or head.output_tokens is None:
        return "without their text"
    if len(head.output_tokens) < 2:
        return "with nothing to decode"
    found = np.zeros(len(steps), STEP)
    for step, facts in zip(steps, found, strict=True):
        neural_len = step.neural_len
        if neural_len is None and (step.draft_len == 0 or step.source in ("none", "ngram")):
            neural_len = 0
        elif neural_len is None and step.source == "neural":
            neural_len = step.draft_len
        if step.position is None:
            return "with a step of unknown position"
        if neural_len is None:
            return "with a step of unknown source"
        following = head.output_tokens[step.position + neural_len :]
        facts["position"], facts["neural_len"] = step.position, neural_len
        facts["drafted"], facts["accepted"] = step.draft_len, step.accepted
        facts["shown"], facts["right"] = _shown(step, neural_len, following)
        facts["running"] = step.running or 0
    position, accepted = found["position"], found["accepted"]
    if len(steps) > 1 and (np.diff(position) == 1).all() and accepted.any():
        return "of mode shadow, in which no decision is carried out"
    # Steps belong to another text if they verify a position twice or lie after the output's end.
    if (np.diff(position) < accepted[:-1] + 1).any() or position[-1] >= len(head.output_tokens):
        return "whose steps contradict their text"
    text = head.prompt_tokens, head.output_tokens
    request = Request(head.workload, head.id, *text, max_tokens=head.max_tokens)
    return LoggedRequest(request, found)


def _shown(step: LoggedStep, neural_len: int, following: Ints) -> tuple[int, int]:
    """How many neural tokens of a step the log shows to be right or wrong, and how many are right.

    Where the target is greedy, the tokens drafted behind the verified ones are right as far as the
    text that follows these goes on with them: whoever had verified them would have accepted these.
    """
    right = min(step.accepted, neural_len)
    if step.unverified_tokens is None:
        return neural_len, right
    count = min(len(step.unverified_tokens), len(following))
    if right == neural_len:
        agree = step.unverified_tokens[:count] == following[:count]
        right += int(agree.cumprod().sum())
    return neural_len + count, right
