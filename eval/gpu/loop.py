"""A closed loop: so many requests run at any time; as one ends the next enters.

The clock starts when the last request of the ramp has ended, and stops when the first place cannot
be filled again.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from engines import core, model_runner
from steps import Steps, as_columns
from workload import Order

from adaspec.trace.schema import Request


class ClosedLoop:
    """Recorded requests that run in an engine of this process, which is forced to emit them."""

    def __init__(self, llm: Any, requests: Sequence[Request], first: int, steps: Steps) -> None:
        """`first` is the number by which the first of the requests is forced."""
        self._engine, self._scheduler = llm.llm_engine, core(llm).scheduler
        self._runner = model_runner(llm)
        self._requests, self._first, self._steps = requests, first, steps
        self._names = itertools.count()

    def run(self, order: Order, load: int, length: int | None) -> dict[str, Any]:
        """Run an order; `length` is that of vLLM's drafts where its schedule names several."""
        if length is not None:
            self._scheduler.dynamic_sd_lookup[:] = [length] * len(self._scheduler.dynamic_sd_lookup)
        waiting: deque[tuple[int, int | None]] = deque(order.ramp)
        waiting.extend((at, None) for at in order.counted)
        ramping, running = len(order.ramp), dict[str, tuple[int, int | None]]()
        faults, preempted = self._faults(), self._steps.preempted
        self._steps.done.clear()
        began_s = time.perf_counter()
        while waiting or len(running) == load:
            while waiting and len(running) < load:
                at, most = waiting.popleft()
                running[self._add(at, most)] = at, most
            for each in self._engine.step():
                if each.finished:
                    at, most = running.pop(each.request_id)
                    self._check(at, most, list(each.outputs[0].token_ids))
                    ramping -= most is not None
                    if most is not None and not ramping:
                        began_s = time.perf_counter()
                        self._steps.done.clear()
        seconds, steps = time.perf_counter() - began_s, list(self._steps.done)
        self._engine.abort_request(list(running))
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
        }

    def _graph_sizes(self) -> Sequence[int]:
        return self._runner.vllm_config.compilation_config.cudagraph_capture_sizes or ()

    def _faults(self) -> Counter[str]:
        worker = getattr(self._runner, "adaspec_session", None)
        return Counter() if worker is None else Counter(worker.breaker.counts)

    def _add(self, at: int, most: int | None) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        asked, name = self._requests[at], f"{self._first + at}-{next(self._names)}"
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
