"""An engine in this very process, stepped by forced plans and timed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from adaspec.errors import ServingError
from adaspec.vllm.compatibility import take_a_workers_threads
from adaspec.vllm.engine import open_engine, prepare_vllm
from adaspec.vllm.forced import Forced, Plan
from adaspec.vllm.machine import hardware
from adaspec.vllm.signatures import installed_version
from adaspec.vllm.stopwatch import PromptStep, Stopwatch, TimedStep

_FIRST_TOKEN = 3
"""Prompts are made of token ids from here on: those below are mostly marks of a text's ends."""
_PATIENCE = 4_000
"""Engine steps within which all requests of a batch must decode together."""
_SETTLING = 1
"""Steps after a change of plans that still verify what the plan before them drafted."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled: a target, its drafter, and how vLLM is to run them."""

    model: str
    draft: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's own, as `LLM()` takes them."""
    draft_method: str | None = None


class ProfiledEngine:
    """vLLM with a policy that does as it is told; close it, or use it in a `with`."""

    def __init__(self, subject: Subject, most_requests: int, longest_draft: int, seed: int) -> None:
        """Room for so many requests at once and drafts of so many tokens."""
        # Only an engine in this process can be told its plans and timed from outside.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        parallel = subject.engine.get("tensor_parallel_size", 1)
        if parallel != 1:
            raise ServingError(
                f"tensor_parallel_size={parallel}: a profile is taken in one process: leave it out"
            )
        prepare_vllm("profiling")
        take_a_workers_threads()
        # Needs torch, which only a machine with vLLM is sure to have.
        from adaspec.vllm.attachment import serve_by

        config: dict[str, Any] = {
            "method": "adaspec",
            "policy": "none",
            "num_speculative_tokens": longest_draft,
        }
        if subject.draft is not None:
            config |= {"model": subject.draft, "draft_method": subject.draft_method}
        arguments = {
            "max_num_seqs": most_requests,
            "distributed_executor_backend": "uni",
            "disable_log_stats": True,
            "seed": seed,
        }
        self._llm = open_engine(subject.model, config, arguments | subject.engine)
        self._engine = self._llm.llm_engine
        core = self._engine.engine_core.engine_core
        self._runner = core.model_executor.driver_worker.worker.model_runner
        self._policy = Forced()
        self.session = serve_by(self._runner, self._policy, policy=self._policy.name)
        self._watch = Stopwatch(self._runner)
        self.session.watched_by(self._watch)
        self._numbers = itertools.count()
        self._longest_draft = longest_draft
        self._seed = seed
        self._vocabulary = int(self._engine.vllm_config.model_config.get_vocab_size())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine; its memory is free once nothing else refers to it."""
        self._engine.engine_core.shutdown()
        del self._llm, self._engine, self._runner

    @property
    def version(self) -> str:
        """Of vLLM."""
        return installed_version()

    @property
    def hardware(self) -> str:
        """What it runs on."""
        return hardware()

    @property
    def runs_on_cpu(self) -> bool:
        """Whether every timed part is over when its call returns."""
        return bool(self._runner.device.type == "cpu")

    @property
    def dtype(self) -> str:
        """The target's arithmetic, as `float32`."""
        return str(self._engine.vllm_config.model_config.dtype).removeprefix("torch.")

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """Batch sizes in tokens that a step is padded to; none where nothing is captured."""
        compilation = self._engine.vllm_config.compilation_config
        mode = getattr(compilation, "cudagraph_mode", None)
        if self.runs_on_cpu or mode is None or mode.name == "NONE":
            return ()
        return tuple(sorted(int(size) for size in compilation.cudagraph_capture_sizes or ()))

    def refusal(self, requests: int, context_tokens: int, room: int) -> str | None:
        """Why so many requests of such a context and `room` more tokens do not fit, if so."""
        config = self._engine.vllm_config
        longest = int(config.model_config.max_model_len)
        needed = context_tokens + room + self._longest_draft
        if needed > longest:
            return f"needs {needed:,} tokens, max_model_len is {longest:,}"
        if requests > config.scheduler_config.max_num_seqs:
            return f"max_num_seqs is {config.scheduler_config.max_num_seqs}"
        tokens = requests * (1 + self._longest_draft)
        budget = int(config.scheduler_config.max_num_batched_tokens)
        if tokens > budget:
            return f"verifies {tokens:,} tokens, max_num_batched_tokens is {budget:,}"
        cache = config.cache_config
        held = int(cache.num_gpu_blocks or 0) * int(cache.block_size)
        if requests * needed > held:
            return f"needs {requests * needed:,} tokens of KV cache, there are {held:,}"
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
        """Time so many steps of every plan in turn, over requests that decode together.

        `synchronises` awaits a GPU around every part, which makes parts true and steps slower.
        """
        self._policy.want, self._policy.holds = Plan(), holds
        self._watch.synchronises = synchronises and not self.runs_on_cpu
        names = [self._add(row, context_tokens) for row in range(requests)]
        found: list[tuple[Plan, TimedStep]] = []
        try:
            self._await_decoding(requests)
            for plan in plans:
                self._policy.want = plan
                for at in range(_SETTLING + steps):
                    timed = self._watch.time_step(self._engine.step)
                    if at >= _SETTLING and timed is not None and timed.requests == requests:
                        found.append((plan, timed))
        finally:
            self._watch.synchronises = False
            self._engine.abort_request(names)
            while self._engine.has_unfinished_requests():
                self._engine.step()
        if self.session.guard.counts.total():
            raise ServingError(
                f"a forced plan failed in the engine ({dict(self.session.guard.counts)}): "
                "the log says why; no profile is made of it"
            )
        return found

    def prompts(self) -> list[PromptStep]:
        """Steps that read prompts since this was last asked."""
        found, self._watch.prompts = self._watch.prompts, []
        return found

    def _add(self, row: int, context_tokens: int) -> str:
        """Enter a request whose prompt is the same for this row every time, but for its length."""
        from vllm import SamplingParams

        draw = np.random.default_rng((self._seed, row))
        tokens = draw.integers(_FIRST_TOKEN, self._vocabulary, context_tokens).tolist()
        name = f"profile-{next(self._numbers)}"
        longest = int(self._engine.vllm_config.model_config.max_model_len)
        params = SamplingParams(
            temperature=0.0, max_tokens=longest - context_tokens, ignore_eos=True
        )
        self._engine.add_request(name, {"prompt_token_ids": tokens}, params)
        return name

    def _await_decoding(self, requests: int) -> None:
        for _ in range(_PATIENCE):
            timed = self._watch.time_step(self._engine.step)
            if timed is not None and timed.requests == requests:
                return
        raise ServingError(
            f"{requests} requests never decoded together: give the engine more KV cache, or "
            "profile smaller batches"
        )
