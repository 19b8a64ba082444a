"""A closed loop: so many requests run at any time; as one ends the next enters.

The clock starts when the last request of the ramp has ended, and stops when the first place cannot
be filled again.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import torch
from engines import core, model_runner
from profiled import profiled
from steps import Steps, as_columns
from workload import Order

from adaspec.trace.schema import Request

PROFILED = 30
"""So many steps are profiled."""


class ClosedLoop:
    """Recorded requests that run in an engine of this process, which is forced to emit them."""

    def __init__(self, llm: Any, requests: Sequence[Request], steps: Steps) -> None:
        self._engine, self._scheduler = llm.llm_engine, core(llm).scheduler
        self._runner = model_runner(llm)
        self._requests, self._steps = requests, steps
        self._names = itertools.count()
        self._waiting = deque[tuple[int, int | None]]()
        self._running = dict[str, tuple[int, int | None]]()
        """By name, which request each is, and how many tokens it emits at most."""

    def set(self, length: int | None, rejects: bool, bound_ms: float | None) -> None:
        """Say how the engine runs from here on.

        `length` is that of vLLM's drafts where its schedule names several. An engine that `rejects`
        verifies drafts and accepts none of their tokens; greedy outputs stay what they are.
        `bound_ms` is adaspec's `max_step_ms`.
        """
        if length is not None:
            self._scheduler.dynamic_sd_lookup[:] = [length] * len(self._scheduler.dynamic_sd_lookup)
        sampler = self._runner.rejection_sampler
        if sampler is not None:
            # What `rejection_sample_method: synthetic` makes of acceptance rates of 0.
            rates = torch.zeros(sampler.num_speculative_steps, device=self._runner.device)
            sampler.synthetic_conditional_rates = rates if rejects else None
        session = getattr(self._runner, "adaspec_session", None)
        longest_s = None if bound_ms is None else bound_ms / 1e3
        if session is not None and session.serving.setup.longest_s != longest_s:
            setup = dataclasses.replace(session.serving.setup, longest_s=longest_s)
            session.serving = dataclasses.replace(session.serving, setup=setup)
            session.take_costs(setup.cost)

    def run(self, order: Order, load: int, profiles: bool) -> dict[str, Any]:
        """Run an order; with a profile, that of some steps behind the ramp, and no more."""
        self._waiting.extend([*order.ramp, *((at, None) for at in order.counted)])
        faults, preempted = self._faults(), self._steps.preempted
        began_s, profile = self._begin(), None
        while self._waiting or len(self._running) == load:
            was_ramping = self._ramps()
            self._step(load)
            if was_ramping and not self._ramps():
                began_s = self._begin()
                if profiles:
                    profile = profiled(lambda: self._step(load), PROFILED)
                    break
        seconds, steps = time.perf_counter() - began_s, list(self._steps.done)
        self._waiting.clear()
        self._engine.abort_request(list(self._running))
        self._running.clear()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        tokens = sum(step["emitted"] for step in steps)
        return {
            "seconds": seconds,
            "tokens": tokens,
            "tokens_per_s": tokens / seconds,
            "tokens_per_row": tokens / max(sum(step["answers"] for step in steps), 1),
            "preempted": self._steps.preempted - preempted,
            "faults": dict(self._faults() - faults),
            "largest_graph": max(self._graph_sizes(), default=0),
            "steps": as_columns(steps),
            **({} if profile is None else {"profile": profile}),
        }

    def _begin(self) -> float:
        self._steps.done.clear()
        return time.perf_counter()

    def _ramps(self) -> bool:
        """Whether a request is left of those that do not count."""
        return any(most is not None for _, most in (*self._running.values(), *self._waiting))

    def _step(self, load: int) -> None:
        """Fill all places as far as requests wait, and run a step."""
        while self._waiting and len(self._running) < load:
            at, most = self._waiting.popleft()
            self._running[self._add(at, most)] = at, most
        for each in self._engine.step():
            if each.finished:
                at, most = self._running.pop(each.request_id)
                self._check(at, most, list(each.outputs[0].token_ids))

    def _graph_sizes(self) -> Sequence[int]:
        return self._runner.vllm_config.compilation_config.cudagraph_capture_sizes or ()

    def _faults(self) -> Counter[str]:
        session = getattr(self._runner, "adaspec_session", None)
        return Counter() if session is None else Counter(session.breaker.counts)

    def _add(self, at: int, most: int | None) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        asked, name = self._requests[at], f"{at}-{next(self._names)}"
        params = SamplingParams(
            temperature=0.0,
            max_tokens=len(asked.output_tokens) if most is None else most,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(name, {"prompt_token_ids": asked.prompt_tokens.tolist()}, params)
        return name

    def _check(self, at: int, most: int | None, output: list[int]) -> None:
        """An output that is forced is the recorded one."""
        if output != self._requests[at].output_tokens[:most].tolist():
            raise RuntimeError(f"request {at} was not forced: its output is not the recorded one")
