"""Logged traces laid out flat: each request's text and its steps, to learn from and to judge by.

A logged request is of use only if its text is known (`prompt_tokens` and `output_tokens`
at its first step), and every step has its position and the number of neural tokens in its draft.
Requests that lack one of these are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import AdaspecError
from adaspec.replay.recording import Recording, build_recording
from adaspec.trace.reader import Paths, TraceReader, paths_of
from adaspec.trace.schema import LoggedStep, Request

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps in order."""

    position: Ints
    neural_len: Ints
    drafted: Ints
    accepted: Ints
    """Accepted tokens of the whole draft, neural or not."""
    shown: Ints
    """Neural tokens of which the log shows whether they are right: at least those verified."""
    right: Ints
    """How many of these are right, one after another."""
    running: Ints
    """Requests in the engine's batch; 0 where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest(Steps):
    """One request's text, and its steps."""

    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Log(Steps):
    """Requests laid out flat, and all of their steps one after another."""

    recording: Recording
    """The requests as texts: what became of neural drafts is said by the steps."""
    first: NDArray[np.int64]
    """Index of each request's first step, and the number of steps at the end."""

    @property
    def request(self) -> Ints:
        """Each step's request."""
        return np.repeat(np.arange(len(self.recording)), np.diff(self.first)).astype(np.int32)

    @property
    def at(self) -> NDArray[np.int64]:
        """Each step's flat position."""
        return self.recording.columns.offset[self.request] + self.position

    @property
    def left(self) -> Ints:
        """Tokens of the output that each step does not know yet."""
        return (self.recording.columns.length[self.request] - self.position).astype(np.int32)

    def reached(self, token: int) -> NDArray[np.bool_]:
        """Whether each step shows what became of its neural token number `token`, from 1 on."""
        return (self.shown >= token) & (self.right >= token - 1) & (self.left > token)


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
) -> tuple[list[LoggedRequest], dict[str, dict[str, int]]]:
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
    return requests, {name: dict(counts) for name, counts in left_out.items()}


def log_of(requests: Sequence[LoggedRequest]) -> Log:
    """The requests as flat arrays."""
    return Log(
        recording=build_recording([each.request for each in requests], 0),
        first=np.cumsum([0, *(len(each.position) for each in requests)]),
        **{
            item.name: np.concatenate([getattr(each, item.name) for each in requests])
            for item in fields(Steps)
        },
    )


def logged_request(steps: list[LoggedStep]) -> LoggedRequest | str:
    """A request with its steps, or the reason why it cannot be used."""
    head = steps[0]
    if head.prompt_tokens is None or head.output_tokens is None:
        return "without their text"
    if len(head.output_tokens) < 2:
        return "with nothing to decode"
    if any(step.position is None for step in steps):
        return "with a step of unknown position"
    neural = [length for step in steps if (length := _neural_len(step)) is not None]
    if len(neural) < len(steps):
        return "with a step of unknown source"
    position = np.array([step.position for step in steps], np.int32)
    accepted = np.array([step.accepted for step in steps], np.int32)
    if len(steps) > 1 and (np.diff(position) == 1).all() and accepted.any():
        return "of mode shadow, in which no decision is carried out"
    # Steps belong to another text if they verify a position twice or lie after the output's end.
    if (np.diff(position) < accepted[:-1] + 1).any() or position[-1] >= len(head.output_tokens):
        return "whose steps contradict their text"
    shown, right = np.array(
        [
            _shown(step, length, head.output_tokens)
            for step, length in zip(steps, neural, strict=True)
        ],
        np.int32,
    ).T.copy()
    return LoggedRequest(
        request=Request(
            head.workload,
            head.id,
            head.prompt_tokens,
            head.output_tokens,
            max_tokens=head.max_tokens,
        ),
        position=position,
        neural_len=np.array(neural, np.int32),
        drafted=np.array([step.draft_len for step in steps], np.int32),
        accepted=accepted,
        shown=shown,
        right=right,
        running=np.array([step.running or 0 for step in steps], np.int32),
    )


def _shown(step: LoggedStep, neural_len: int, output: Ints) -> tuple[int, int]:
    """How many neural tokens of a step the log shows to be right or wrong, and how many are right.

    Where the target is greedy, the tokens drafted behind the verified ones are right as far as the
    text goes on with them: whoever had verified them would have accepted just these.
    """
    right = min(step.accepted, neural_len)
    if step.unverified_tokens is None or step.position is None:
        return neural_len, right
    following = output[step.position + neural_len :][: len(step.unverified_tokens)]
    if right == neural_len:
        agree = step.unverified_tokens[: len(following)] == following
        right += int(agree.cumprod().sum())
    return neural_len + len(following), right


def _neural_len(step: LoggedStep) -> int | None:
    """Number of neural tokens in a step's draft; None if the log does not say."""
    if step.neural_len is not None:
        return step.neural_len
    if step.draft_len == 0 or step.source in ("none", "ngram"):
        return 0
    return step.draft_len if step.source == "neural" else None
