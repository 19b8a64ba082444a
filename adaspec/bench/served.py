"""Steps as a server makes them: a session decides, and between its calls a model runs.

A model's forward reads all its weights, on every core. When it ends, nothing of what deciding needs
is left in a cache, and deciding from memory takes several times as long as from a cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Self

import numpy as np

from adaspec.bench.decide import DRAFTED, OUTPUT, Decided, DecideRow, MadeUpBatch, bench_decide
from adaspec.bench.machine import read_memory
from adaspec.cost.model import CostModel
from adaspec.evaluate.options import Progress, silent
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Ints, Setup
from adaspec.vllm.batch import EngineBatch, EngineStep
from adaspec.vllm.events import Observer, Serving
from adaspec.vllm.metrics import Counters, MetricsObserver
from adaspec.vllm.session import Session

FORWARD_BYTES = 64 << 20
"""What a forward reads: more than the caches of most cores hold."""
_NEIGHBOUR = """
import os, sys
import numpy
parent, weights = os.getppid(), numpy.ones(int(sys.argv[1]) // 8)
while os.getppid() == parent:
    weights.sum()
"""


class BusyMachine:
    """While it is entered, all cores but one read memory without end, as a model's forward does."""

    def __enter__(self) -> Self:
        others = len(os.sched_getaffinity(0)) - 1 if hasattr(os, "sched_getaffinity") else 1
        self._weights = np.ones(FORWARD_BYTES // 8)
        # Processes: threads would also compete for the interpreter, which a model's do not.
        words = [sys.executable, "-c", _NEIGHBOUR, str(FORWARD_BYTES)]
        self._neighbours = [subprocess.Popen(words) for _ in range(others)]
        return self

    def __exit__(self, *_: object) -> None:
        for neighbour in self._neighbours:
            neighbour.kill()
            neighbour.wait()

    def forward(self) -> None:
        """Read what a forward reads, on this core."""
        read_memory(self._weights)


def bench_served(
    policies: Sequence[LearnedPolicy],
    contexts: Sequence[int],
    batches: Sequence[int],
    steps: int,
    report: Progress = silent,
) -> Decided:
    """The same as `bench_decide`, each step as a server makes it, on a busy machine."""
    with BusyMachine() as machine:
        return bench_decide(
            policies, contexts, batches, steps, report, partial(ServedBatch, machine=machine)
        )


class _Witness(Observer):
    """Keeps what the last step came to."""

    last: EngineStep

    def proposed(self, event: EngineStep) -> None:
        """Keep the step."""
        self.last = event


class ServedBatch(MadeUpBatch):
    """The requests of a `MadeUpBatch`, served by a session on a busy machine."""

    def __init__(
        self,
        policy: LearnedPolicy,
        cost: CostModel,
        batch: int,
        tokens: int,
        machine: BusyMachine,
    ) -> None:
        self._machine, self._metric_s = machine, list[float]()
        super().__init__(policy, cost, batch, tokens)

    def _start(self, cost: CostModel) -> None:
        policy, batch = self.policy, self.batch
        setup = Setup(
            # Every request gets the drafter, and every step drafts as far as it can.
            cost=replace(cost, draft_fixed_s=0.0, draft_per_kv_s=0.0, draft_prompt_s=0.0),
            cap=policy.cap,
            neural_cap=min(DRAFTED, policy.neural_cap),
            slots=2 * batch,
            shows_tokens=True,
            shows_confidences=True,
        )
        serving = Serving(
            policy.name,
            "it is measured",
            "serve",
            setup,
            target="made up",
            drafter="made up",
            vocabulary=1 << 30,
        )
        self._session = Session(self.policy_of_its_own(), serving, stop_if_slow=False)
        self._session.counts_slow_decisions = False
        self._witness = _Witness()
        self._session.observers.add(MetricsObserver(Counters(None, {})), self._witness)
        self._names = [f"made-up-{row}" for row in range(batch)]
        self._states: list[object] = [object() for _ in range(batch)]
        self._sampled = [self._text(row, self._position[row] - 1, 1) for row in range(batch)]
        self._verified: dict[str, list[int]] = {}

    def step(self, timed: bool) -> None:
        """Decide once for the whole batch."""
        tokens, confidences, right_counts = self._draft()
        session, machine = self._session, self._machine
        sampled_counts = np.array([len(each) for each in self._sampled], np.int32)
        engine_batch = EngineBatch(
            self._names,
            self._states,
            self._words,
            self._prompt,
            (self._prompt + self._position - sampled_counts).astype(np.int32),
            self._sampled,
            self._verified,
        )
        alive = dict(zip(self._names, self._states, strict=True))
        machine.forward()
        t0 = perf_counter()
        session.begin(engine_batch, alive)
        t1 = perf_counter()
        session.forwards()
        before_s = perf_counter() - t1
        while_s = after_s = 0.0
        for depth in range(self.drafted):
            while_s += after_s
            drafted, shown = tokens[-1][:, depth].copy(), confidences[-1][:, depth].copy()
            machine.forward()
            began_s = perf_counter()
            session.take(drafted, shown)
            after_s = perf_counter() - began_s
        began_s = perf_counter()
        proposed = session.finish()
        after_s += perf_counter() - began_s
        if timed:
            self.seconds.extend((t1 - t0, before_s, while_s, after_s))
            self._metric_s.append(self._witness.last.decision_s)
        self.steps += 1
        self.matched += int((self._witness.last.step.available > 0).sum())
        self._verified = {
            name: draft for name, draft in zip(self._names, proposed, strict=True) if draft
        }
        for row, (draft, right) in enumerate(zip(proposed, right_counts.tolist(), strict=True)):
            count = min(right, len(draft)) + 1
            self._sampled[row] = self._text(row, self._position[row], count)
            self._position[row] += count
            if self._position[row] + DRAFTED + 1 >= OUTPUT:
                self._names[row] += "+"
                self._states[row] = object()
                self._position[row] = 1
                self._sampled[row] = self._text(row, 0, 1)
                self.entered += 1

    def row(self, reference_s: float) -> DecideRow:
        """The figures over all timed steps."""
        metric_us = float(np.median(self._metric_s)) * 1e6
        return replace(super().row(reference_s), served=True, metric_us=metric_us)

    def _text(self, row: int, position: Any, count: int) -> list[int]:
        start = self.tokens + int(position)
        text: Ints = self._words[row, start : start + count]
        return text.tolist()
