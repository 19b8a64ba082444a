"""Runs an engine in this process step by step with fixed plans, and times the steps."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from adaspec.errors import ServingError
from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Arrival, Batch, Drafts, Proposal
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.engine import open_engine, prepare_vllm
from adaspec.vllm.events import source_of
from adaspec.vllm.machine import hardware
from adaspec.vllm.stopwatch import PromptStep, Stopwatch, TimedStep
from adaspec.vllm.workarounds import use_worker_threads

_FIRST_TOKEN = 3
"""The lowest token id of prompts, because lower ids mostly mark the ends of texts."""
_MAX_STEPS = 4_000
"""How many engine steps all requests of a batch may take until they decode together."""
_SETTLING_STEPS = 1
"""How many steps after a change of plan still verify the drafts of the previous plan."""


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

    def admit(self, arrival: Arrival) -> bool:
        """Follow the plan."""
        return self.holds

    def plan(self, batch: Batch) -> int:
        """Follow the plan."""
        return self.current.forwards if batch.holds_neural.any() else 0

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """Follow the plan; tokens are copied from the text's start, which always exists."""
        rows = len(batch)
        neural_len = np.minimum(self.current.neural_len, drafts.count)
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
        self._llm = open_engine(subject.model, config, arguments | subject.engine)
        self._engine = self._llm.llm_engine
        core = self._engine.engine_core.engine_core
        self._runner = core.model_executor.driver_worker.worker.model_runner
        self._policy = FixedPlanPolicy()
        self.session = serve_by(self._runner, self._policy, policy=self._policy.name)
        self._stopwatch = Stopwatch(self._runner)
        self.session.add_observers(self._stopwatch)
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
    def version(self) -> str:
        """vLLM's version."""
        return installed_version()

    @property
    def hardware(self) -> str:
        """The device that the engine runs on."""
        return hardware()

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
