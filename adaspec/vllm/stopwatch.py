"""Measures the parts of an engine step by timing the runner's methods from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adaspec.vllm.events import Observer

VERIFY, SAMPLE, DRAFT = "verify", "sample", "draft"
TIMED = {
    VERIFY: "execute_model",
    SAMPLE: "_sample",
    DRAFT: "propose_draft_token_ids",
}
"""The runner's method for each part of a step. Drafting includes deciding. All the rest, which is
scheduling, bookkeeping and turning tokens into text, is `other`."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One engine step in which every running request decoded."""

    requests: int
    tokens: int
    """The number of verified tokens: one per request, and its draft."""
    context_tokens: int
    forwards: int
    """Forwards of the neural drafter, including a keep-alive."""
    step_s: float
    verify_s: float
    sample_s: float
    draft_s: float

    @property
    def other_s(self) -> float:
        """The time outside of verification, sampling and drafting."""
        return self.step_s - self.verify_s - self.sample_s - self.draft_s


@dataclass(frozen=True, slots=True)
class PromptStep:
    """One engine step that read prompts."""

    tokens: int
    held: bool
    """Whether the neural drafter read the prompts as well."""
    draft_s: float


class Stopwatch(Observer):
    """Times a runner's steps, and observes its session to count the drafter's forwards."""

    def __init__(self, runner: Any) -> None:
        self.synchronises = False
        """Whether to wait for a GPU's queue around every part, which makes the times of the parts
        true but the steps slower."""
        self.prompts: list[PromptStep] = []
        """The steps that read a prompt; the reader of this list empties it."""
        self._parts = dict.fromkeys(TIMED, 0.0)
        self._scheduled: Any = None
        self._forwards = 0
        self._wait = _wait_for_device()
        for part, name in TIMED.items():
            setattr(runner, name, self._timed(part, getattr(runner, name)))

    def forwards(self, step: int, drafting: int, keep_alive: int, rows: int) -> None:
        """Note how many forwards the drafter ran."""
        self._forwards = drafting + keep_alive

    def time_step(self, step: Callable[[], Any]) -> TimedStep | None:
        """Run and time one engine step; None if not every request in it decoded."""
        self._parts = dict.fromkeys(TIMED, 0.0)
        self._scheduled, self._forwards = None, 0
        began_s = time.perf_counter()
        step()
        step_s = time.perf_counter() - began_s
        decoding = _decoding(self._scheduled)
        if decoding is None:
            self._keep_prompts()
            return None
        return TimedStep(
            *decoding,
            self._forwards,
            step_s,
            self._parts[VERIFY],
            self._parts[SAMPLE],
            self._parts[DRAFT],
        )

    def _keep_prompts(self) -> None:
        if self._scheduled is not None and self._scheduled.total_num_scheduled_tokens:
            tokens = int(self._scheduled.total_num_scheduled_tokens)
            self.prompts.append(PromptStep(tokens, self._forwards > 0, self._parts[DRAFT]))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if part == VERIFY:
                self._scheduled = args[0] if args else kwargs["scheduler_output"]
            began_s = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                if self.synchronises:
                    self._wait()
                self._parts[part] += time.perf_counter() - began_s

        return timed


def _decoding(scheduled: Any) -> tuple[int, int, int] | None:
    """The (requests, tokens, context tokens) of a step; None if the step read a prompt."""
    if scheduled is None or scheduled.scheduled_new_reqs or not scheduled.num_scheduled_tokens:
        return None
    drafts = scheduled.scheduled_spec_decode_tokens
    for request, count in scheduled.num_scheduled_tokens.items():
        if count != 1 + len(drafts.get(request, ())):
            return None
    requests = len(scheduled.num_scheduled_tokens)
    # Each request starts a step with one token that is known, but not computed yet.
    context_tokens = sum(scheduled.scheduled_cached_reqs.num_computed_tokens) + requests
    return requests, int(scheduled.total_num_scheduled_tokens), int(context_tokens)


def _wait_for_device() -> Callable[[], None]:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.synchronize
    return lambda: None
