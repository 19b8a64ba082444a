"""Runs an engine in this process step by step with fixed plans, and times the steps."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from adaspec.errors import ServingError
from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Batch, Proposal
from adaspec.vllm.engine import open_engine, prepare_vllm
from adaspec.vllm.events import Observer, source_of
from adaspec.vllm.workarounds import use_worker_threads

_FIRST_TOKEN = 3
"""The lowest token id of prompts, because lower ids mostly mark the ends of texts."""
_MAX_STEPS = 4_000
"""How many engine steps all requests of a batch may take until they decode together."""
_SETTLING_STEPS = 1
"""How many steps after a change of plan still verify the drafts of the previous plan."""


VERIFY, SAMPLE, DRAFT = "verify", "sample", "draft"
TIMED = {
    VERIFY: "execute_model",
    SAMPLE: "_sample",
    DRAFT: "propose_draft_token_ids",
}
"""The runner's method for each part of a step. Drafting includes deciding. All the rest, which is
scheduling, bookkeeping and turning tokens into text, is `other`."""


@dataclass(frozen=True, slots=True, order=True)
class Plan:
    """The draft of one step, the same for every request: neural tokens, then copied ones."""

    forwards: int = 0
    """Forwards of the neural drafter; at 0, a held drafter runs once to keep its KV complete."""
    neural_len: int = 0
    ngram_len: int = 0

    @property
    def draft_len(self) -> int:
        """How many tokens are verified per request, if its text is long enough to copy from."""
        return self.neural_len + self.ngram_len

    @property
    def source(self) -> str:
        """The source of the verified tokens."""
        return source_of(self.neural_len, self.ngram_len)


class FixedPlanPolicy(BasePolicy):
    """Follows the same plan for every request; the plan may be changed between steps."""

    name = "forced"

    def __init__(self) -> None:
        self.current = Plan()
        self.holds = False
        """Whether requests that enter later hold the neural drafter."""

    def holds_drafter(self, load: int) -> bool:
        """Follow the plan."""
        return self.holds

    def forwards(self, batch: Batch) -> int:
        """Follow the plan."""
        return self.current.forwards if batch.holds_neural.any() else 0

    def decide(self, batch: Batch) -> Proposal:
        """Follow the plan; tokens are copied from the text's start, which always exists."""
        rows = len(batch)
        neural_len = np.minimum(self.current.neural_len, batch.drafts.count)
        neural = np.where(batch.holds_neural, neural_len, 0).astype(np.int32)
        ngram = np.full(rows, self.current.ngram_len, np.int32)
        # After neural tokens, the place to copy from has to be looked up.
        start = np.where(neural > 0, -1, 0).astype(np.int32)
        return Proposal(neural, ngram, start if (start == 0).any() else None)


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a profile: a target, its drafter, and how vLLM should run them."""

    model: str
    draft: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    """vLLM's arguments for `LLM()`."""
    draft_method: str | None = None


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

    def __init__(self, runner: Any, timed: Mapping[str, str] = TIMED) -> None:
        """`timed` has the method of the runner, or of a part of it, for each part of a step."""
        self.synchronises = False
        """Whether to wait for a GPU's queue around every part, which makes the times of the parts
        true but the steps slower."""
        self.prompts: list[PromptStep] = []
        """The steps that read a prompt; the reader of this list empties it."""
        self._parts = dict.fromkeys(TIMED, 0.0)
        self._scheduled: Any = None
        self._forwards = 0
        self._wait = _wait_for_device()
        for part, path in timed.items():
            *owners, name = path.split(".")
            owner = functools.reduce(getattr, owners, runner)
            setattr(owner, name, self._timed(part, getattr(owner, name)))

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


class ProfiledEngine:
    """vLLM with a policy that follows a fixed plan; close it or use it in a `with`."""

    def __init__(self, subject: Subject, max_requests: int, max_draft: int, seed: int) -> None:
        """Start an engine for that many requests at once and drafts of up to that many tokens."""
        # Only an engine in this process can be given plans and timed from outside.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        parallel = subject.engine.get("tensor_parallel_size", 1)
        if parallel != 1:
            raise ServingError(
                f"tensor_parallel_size={parallel}: a profile is taken in one process: leave it out"
            )
        prepare_vllm("profiling")
        use_worker_threads()
        # This needs torch, which only machines with vLLM must have.
        from adaspec.vllm.attachment import serve_by

        config: dict[str, Any] = {
            "method": "adaspec",
            "policy": "none",
            "guard": False,
            "num_speculative_tokens": max_draft,
        }
        if subject.draft is not None:
            config |= {"model": subject.draft, "draft_method": subject.draft_method}
        arguments = {
            "max_num_seqs": max_requests,
            "distributed_executor_backend": "uni",
            "disable_log_stats": True,
            "seed": seed,
        }
        self._take(open_engine(subject.model, config, arguments | subject.engine), max_draft, seed)
        self._policy = FixedPlanPolicy()
        self.session = serve_by(self._runner, self._policy, policy=self._policy.name)
        self._stopwatch = Stopwatch(self._runner)
        self.session.observers.add(self._stopwatch)

    def _take(self, llm: Any, max_draft: int, seed: int) -> None:
        """Take over an `LLM`, which drafts at most so many tokens."""
        self._llm = llm
        self._engine = llm.llm_engine
        core = self._engine.engine_core.engine_core
        self._runner = core.model_executor.driver_worker.worker.model_runner
        self._numbers = itertools.count()
        self._max_draft = max_draft
        self._seed = seed
        self._vocabulary = int(self._engine.vllm_config.model_config.get_vocab_size())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine; its memory is freed once nothing else refers to it."""
        self._engine.engine_core.shutdown()
        del self._llm, self._engine, self._runner

    @property
    def runs_on_cpu(self) -> bool:
        """Whether the engine runs on a CPU, where every timed part ends when its call returns."""
        return bool(self._runner.device.type == "cpu")

    @property
    def dtype(self) -> str:
        """The target's data type, such as `float32`."""
        return str(self._engine.vllm_config.model_config.dtype).removeprefix("torch.")

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """The batch sizes, in tokens, to which steps are padded; empty without captured graphs."""
        compilation = self._engine.vllm_config.compilation_config
        mode = getattr(compilation, "cudagraph_mode", None)
        if self.runs_on_cpu or mode is None or mode.name == "NONE":
            return ()
        return tuple(sorted(int(size) for size in compilation.cudagraph_capture_sizes or ()))

    def refusal(self, requests: int, context_tokens: int, room: int) -> str | None:
        """The reason why requests of that context and `room` more tokens do not fit, or None."""
        config = self._engine.vllm_config
        limit = int(config.model_config.max_model_len)
        needed = context_tokens + room + self._max_draft
        if needed > limit:
            return f"needs {needed:,} tokens, max_model_len is {limit:,}"
        if requests > config.scheduler_config.max_num_seqs:
            return f"max_num_seqs is {config.scheduler_config.max_num_seqs}"
        tokens = requests * (1 + self._max_draft)
        budget = int(config.scheduler_config.max_num_batched_tokens)
        if tokens > budget:
            return f"verifies {tokens:,} tokens, max_num_batched_tokens is {budget:,}"
        cache = config.cache_config
        cached = int(cache.num_gpu_blocks or 0) * int(cache.block_size)
        if requests * needed > cached:
            return f"needs {requests * needed:,} tokens of KV cache, there are {cached:,}"
        return None

    def run(
        self,
        requests: int,
        context_tokens: int,
        holds: bool,
        plans: Sequence[Plan],
        steps: int,
        synchronises: bool = False,
    ) -> list[tuple[Plan, TimedStep]]:
        """Time that many steps of every plan in turn, over requests that decode together.

        `synchronises` waits for a GPU around every part of a step, which makes the times of the
        parts true but the steps slower.
        """
        self._policy.current, self._policy.holds = Plan(), holds
        self._stopwatch.synchronises = synchronises and not self.runs_on_cpu
        names = [self._add(row, context_tokens) for row in range(requests)]
        timed_steps: list[tuple[Plan, TimedStep]] = []
        try:
            self._await_decoding(requests)
            for plan in plans:
                self._policy.current = plan
                for step in range(_SETTLING_STEPS + steps):
                    timed_step = self._stopwatch.time_step(self._engine.step)
                    if (
                        step >= _SETTLING_STEPS
                        and timed_step is not None
                        and timed_step.requests == requests
                    ):
                        timed_steps.append((plan, timed_step))
        finally:
            self._stopwatch.synchronises = False
            self._engine.abort_request(names)
            while self._engine.has_unfinished_requests():
                self._engine.step()
        if self.session.breaker.counts:
            raise ServingError(
                f"a forced plan failed in the engine ({dict(self.session.breaker.counts)}): "
                "the log says why; no profile is made of it"
            )
        return timed_steps

    def prompts(self) -> list[PromptStep]:
        """The steps that read prompts since the last call."""
        prompts, self._stopwatch.prompts = self._stopwatch.prompts, []
        return prompts

    def _add(self, row: int, context_tokens: int) -> str:
        """Add a request; prompts of the same row differ only in their length."""
        from vllm import SamplingParams

        generator = np.random.default_rng((self._seed, row))
        tokens = generator.integers(_FIRST_TOKEN, self._vocabulary, context_tokens).tolist()
        name = f"profile-{next(self._numbers)}"
        max_length = int(self._engine.vllm_config.model_config.max_model_len)
        params = SamplingParams(
            temperature=0.0, max_tokens=max_length - context_tokens, ignore_eos=True
        )
        self._engine.add_request(name, {"prompt_token_ids": tokens}, params)
        return name

    def _await_decoding(self, requests: int) -> None:
        for _ in range(_MAX_STEPS):
            timed_step = self._stopwatch.time_step(self._engine.step)
            if timed_step is not None and timed_step.requests == requests:
                return
        raise ServingError(
            f"{requests} requests never decoded together: give the engine more KV cache, or "
            "profile smaller batches"
        )
