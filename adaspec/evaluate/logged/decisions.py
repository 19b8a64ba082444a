"""A trained policy's plans at logged decisions, which it makes knowing what the log shows before.

Of the batch that ran a log knows no more than its size, so the policy decides for as many copies of
the request. It learns what came of the logged plans as if they had been its own: its history is
that of the log, and so is the throughput at which it trades tokens for time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.draft.index import NgramIndex
from adaspec.evaluate.logged.outcomes import Plans
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import LONGEST_NEURAL
from adaspec.policy.planner.recalibration import note_expected
from adaspec.policy.protocol import Setup
from adaspec.replay.logged import Log
from adaspec.replay.recorded import HiddenDrafts
from adaspec.step.executor import Executor, Step

Ints = NDArray[np.int32]


def plans_of_learned(log: Log, policy: LearnedPolicy, cost: CostModel, cap: int) -> Plans:
    """What a trained policy would have proposed at every logged decision."""
    index, most = NgramIndex(), min(policy.cap, cap)
    slots = int(log.running.max())
    setup = Setup(cost, most, min(policy.neural_cap, most), slots, False, False)
    executor = Executor(policy, setup, index)
    plans = np.zeros((4, len(log.at)), np.int32)
    for request in range(len(log.recording)):
        _decide(log, request, executor, policy, plans)
    neural, ngram, forwards, holds = plans
    columns, drafts = log.recording.columns, neural > 0
    copied, spliced = np.where(drafts, 0, ngram), np.where(drafts, ngram, 0)
    behind = np.minimum(log.at + neural, len(columns.run) - 1)
    return Plans(
        copied.astype(np.int32),
        np.minimum(copied, columns.run[log.at]).astype(np.int32),
        neural,
        spliced.astype(np.int32),
        np.minimum(spliced, columns.run[behind]).astype(np.int32),
        forwards,
        holds > 0,
    )


def _decide(log: Log, request: int, executor: Executor, policy: LearnedPolicy, plans: Ints) -> None:
    """Fill in the plans at one request's decisions: neural, n-gram, forwards, drafter held."""
    index, told = executor.index, log.recording.requests[request]
    first, last = log.first[request], log.first[request + 1]
    rows = round(float(log.running[first:last].mean())) if last > first else 0
    known = np.append(told.prompt_tokens, told.output_tokens[:1]).astype(np.int32)
    slots = np.array([index.open(known) for _ in range(rows)], np.int32)
    prompt, position = len(told.prompt_tokens), 1
    holds = np.array([executor.admit(int(slot), prompt, rows) for slot in slots], np.bool_)
    for at in range(first, last):
        _emit(index, slots, told.output_tokens[position : log.position[at]])
        position = int(log.position[at])
        step = executor.begin(
            slots.copy(),
            np.full(rows, prompt, np.int32),
            np.full(rows, position, np.int32),
            holds.copy(),
        )
        if not executor.keep(step):
            holds[:] = False
        step.source = HiddenDrafts(
            log.recording,
            np.full(rows, request, np.int64),
            np.full(rows, position, np.int32),
            log.recording.arrays.facts,
            step.holds_neural,
            executor.setup.cap,
            policy.name,
        )
        wants_forward = executor.plan(step) > 0
        while wants_forward:
            wants_forward = executor.forward_ran(step)
        cut = executor.settle(step)
        plans[:, at] = cut.neural_len[0], cut.ngram_len[0], step.forwards, step.holds_neural[0]
        _learn(log, at, executor, policy, step)
    executor.release(slots)
    for slot in slots.tolist():
        index.close(slot)


def _learn(log: Log, at: int, executor: Executor, policy: LearnedPolicy, step: Step) -> None:
    """Tell the policy what came of the logged plan."""
    rows, request = len(step.slots), log.request[at]
    position, output = int(log.position[at]), log.recording.requests[request].output_tokens
    emitted = output[position : position + int(log.accepted[at]) + 1]

    def all_rows(value: int) -> Ints:
        return np.full(rows, value, np.int32)

    drafted, neural = int(log.drafted[at]), min(int(log.neural_len[at]), LONGEST_NEURAL)
    note_expected(policy.planner.memory, all_rows(neural), all_rows(drafted - neural))
    outcome = executor.outcome(
        step,
        drafted=all_rows(drafted),
        neural_drafted=all_rows(neural),
        accepted=all_rows(int(log.accepted[at])),
        emitted=np.tile(emitted, (rows, 1)).astype(np.int32),
        emitted_tokens=all_rows(len(emitted)),
        forwards=neural,
    )
    executor.learn(step, outcome)


def _emit(index: NgramIndex, slots: Ints, tokens: Ints) -> None:
    if len(tokens):
        counts = np.full(len(slots), len(tokens), np.int32)
        index.extend(slots, np.tile(tokens, len(slots)), counts)
