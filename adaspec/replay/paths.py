"""Static rules at full speed: a rule's path through a request does not depend on the load.

The path (what is drafted and what is emitted, step by step) is walked once per rule and request;
the closed loop then only adds up what each step costs in the company it runs in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import step_s
from adaspec.jit import compiled
from adaspec.policy.static import StaticRule
from adaspec.replay.rows import entry_s
from adaspec.replay.tape import Columns, Tape

Array = NDArray[np.float64]
Longs = NDArray[np.int64]
Shorts = NDArray[np.int16]

DRAFTED, FORWARDS, EMITTED, ACCEPTED = 0, 1, 2, 3
"""Columns of a step of a path."""

TOKENS, TIME, STEPS, ROW_STEPS, SUM_ACCEPTED, SUM_DRAFTED, NEURAL_STEPS = range(7)
"""Columns of a loop's totals."""
TOTALS = 7


class Paths(NamedTuple):
    """All requests' paths under one rule; those of request r are rows start[r] .. start[r + 1]."""

    start: NDArray[np.int64]
    steps: NDArray[np.int16]


@compiled
def _walk(columns: Columns, rule: Longs, cap: int, start: Longs, steps: Shorts) -> int:
    """Fill `start` and `steps` for every request."""
    min_match, ngram_len, neural_len, splice_match, splice_len, agree = rule
    offset, length, neural = columns.offset, columns.length, columns.neural
    match, available, run = columns.match, columns.available, columns.run
    tokens_known = columns.behind_match.shape[1] > 0
    at = 0
    for r in range(length.shape[0]):
        start[r] = at
        base, end = offset[r], length[r]
        p = 1
        while p < end:
            i = base + p
            copies = ngram_len > 0 and match[i] >= min_match
            forwards = 0
            if copies and agree:
                forwards = 1
                copies = columns.agrees[i] == 1
            if copies:
                drafted = min(ngram_len, available[i], cap)
                accepted = min(run[i], drafted)
            else:
                drafted = min(neural_len, cap)
                forwards = drafted
                accepted = min(neural[i], drafted) if drafted > 0 else 0
                room = min(splice_len, cap - drafted)
                if drafted > 0 and room > 0:
                    whole = accepted == drafted
                    j = i + drafted
                    if tokens_known and not whole:
                        if columns.behind_match[i, drafted - 1] >= splice_match:
                            drafted += min(room, columns.behind_available[i, drafted - 1])
                    elif p + drafted < end and match[j] >= splice_match:
                        spliced = min(room, available[j])
                        drafted += spliced
                        if whole:
                            accepted += min(spliced, run[j])
            emitted = min(accepted + 1, end - p)
            steps[at, DRAFTED] = drafted
            steps[at, FORWARDS] = forwards
            steps[at, EMITTED] = emitted
            steps[at, ACCEPTED] = min(accepted, end - p)
            at += 1
            p += emitted
    start[length.shape[0]] = at
    return at


@compiled
def run_paths(
    columns: Columns,
    start: Longs,
    steps: Shorts,
    order: NDArray[np.int32],
    concurrency: int,
    cost: Array,
    holds: bool,
    totals: Array,
    latency: Array,
) -> None:
    """Closed loop over paths: fills `totals`, and seconds per request of `order` into `latency`.

    `latency` may be empty; entries of requests that do not finish stay as they are.
    """
    at = np.empty(concurrency, np.int64)
    end = np.empty(concurrency, np.int64)
    entry = np.empty(concurrency, np.int64)
    entered = np.zeros(concurrency)
    prompt, length = columns.prompt, columns.length
    timed = latency.shape[0] > 0
    context = 0
    time = 0.0
    for row in range(concurrency):
        r = order[row]
        time += entry_s(columns, r, holds)
        entered[row] = time
        at[row], end[row], entry[row] = start[r], start[r + 1], row
        context += prompt[r] + 1
    following = concurrency
    tokens = accepted = drafted = n_steps = neural_steps = 0
    while True:
        step_drafted = step_emitted = forwards = 0
        finished = False
        for row in range(concurrency):
            step = at[row]
            step_drafted += steps[step, DRAFTED]
            step_emitted += steps[step, EMITTED]
            accepted += steps[step, ACCEPTED]
            forwards = max(forwards, steps[step, FORWARDS])
            at[row] = step + 1
            finished |= step + 1 == end[row]
        time += step_s(cost, concurrency + step_drafted, context, forwards, holds)
        n_steps += 1
        drafted += step_drafted
        tokens += step_emitted
        neural_steps += forwards > 0
        context += step_emitted
        if finished:
            done = False
            now = time
            for row in range(concurrency):
                if at[row] < end[row]:
                    continue
                r = order[entry[row]]
                if timed:
                    latency[entry[row]] = now - entered[row]
                context -= prompt[r] + length[r]
                if following == order.shape[0]:
                    done = True
                    continue
                r = order[following]
                at[row], end[row], entry[row] = start[r], start[r + 1], following
                time += entry_s(columns, r, holds)
                entered[row] = time
                context += prompt[r] + 1
                following += 1
            if done:
                break
    totals[TOKENS], totals[TIME], totals[STEPS] = tokens, time, n_steps
    totals[ROW_STEPS] = n_steps * concurrency
    totals[SUM_ACCEPTED], totals[SUM_DRAFTED] = accepted, drafted
    totals[NEURAL_STEPS] = neural_steps


@compiled
def run_lockstep(
    columns: Columns,
    start: Longs,
    steps: Shorts,
    request: int,
    copies: int,
    cost: Array,
    holds: bool,
    totals: Array,
) -> None:
    """`copies` of one request advance together: fills `totals`."""
    context = columns.prompt[request] + 1
    time = copies * entry_s(columns, request, holds)
    tokens = accepted = drafted = neural_steps = 0
    for step in range(start[request], start[request + 1]):
        forwards = steps[step, FORWARDS]
        verified = copies * (1 + steps[step, DRAFTED])
        time += step_s(cost, verified, copies * context, forwards, holds)
        context += steps[step, EMITTED]
        tokens += steps[step, EMITTED]
        accepted += steps[step, ACCEPTED]
        drafted += steps[step, DRAFTED]
        neural_steps += forwards > 0
    n_steps = start[request + 1] - start[request]
    totals[TOKENS], totals[TIME], totals[STEPS] = copies * tokens, time, n_steps
    totals[ROW_STEPS] = copies * n_steps
    totals[SUM_ACCEPTED], totals[SUM_DRAFTED] = copies * accepted, copies * drafted
    totals[NEURAL_STEPS] = neural_steps


@compiled
def _lockstep_grid(
    columns: Columns, rules: Longs, cap: int, copies: Longs, cost: Array, speeds: Array
) -> None:
    """Tokens per second of every rule, request and number of copies."""
    n = columns.length.shape[0]
    start = np.empty(n + 1, np.int64)
    steps = np.empty((columns.neural.shape[0], 4), np.int16)
    totals = np.empty(TOTALS)
    for s in range(rules.shape[0]):
        _walk(columns, rules[s], cap, start, steps)
        for r in range(n):
            for c in range(copies.shape[0]):
                run_lockstep(columns, start, steps, r, copies[c], cost, rules[s, 2] > 0, totals)
                speeds[s, r, c] = totals[TOKENS] / totals[TIME]


@compiled
def _grid(
    columns: Columns,
    rules: Longs,
    cap: int,
    orders: NDArray[np.int32],
    order_start: Longs,
    concurrency: Longs,
    cost: Array,
    totals: Array,
) -> None:
    """Totals of every rule in every order: walks each rule once, then loops."""
    n = columns.length.shape[0]
    start = np.empty(n + 1, np.int64)
    steps = np.empty((columns.neural.shape[0], 4), np.int16)
    unused = np.empty(0)
    for s in range(rules.shape[0]):
        _walk(columns, rules[s], cap, start, steps)
        for o in range(concurrency.shape[0]):
            run_paths(
                columns,
                start,
                steps,
                orders[order_start[o] : order_start[o + 1]],
                concurrency[o],
                cost,
                rules[s, 2] > 0,
                totals[s, o],
                unused,
            )


def walk_rule(tape: Tape, rule: StaticRule, cap: int) -> Paths:
    """The path of one rule through every request of the tape."""
    columns = rule_columns(tape, rule)
    start = np.empty(len(tape) + 1, np.int64)
    steps = np.empty((len(columns.neural), 4), np.int16)
    count = _walk(columns, rule.row(), cap, start, steps)
    return Paths(start, steps[:count].copy())


def grid_totals(
    columns: Columns,
    rules: NDArray[np.int64],
    cap: int,
    orders: list[NDArray[np.int32]],
    concurrency: list[int],
    cost: Array,
) -> Array:
    """Totals (rule, order, TOTALS); `orders[i]` runs at `concurrency[i]`. Releases the GIL."""
    totals = np.zeros((len(rules), len(orders), TOTALS))
    starts = np.concatenate([[0], np.cumsum([len(order) for order in orders])]).astype(np.int64)
    flat = np.concatenate(orders).astype(np.int32)
    _grid(columns, rules, cap, flat, starts, np.array(concurrency, np.int64), cost, totals)
    return totals


def lockstep_speeds(
    columns: Columns, rules: NDArray[np.int64], cap: int, copies: tuple[int, ...], cost: Array
) -> Array:
    """Tokens per second (rule, request, copies) in lockstep. Releases the GIL."""
    speeds = np.empty((len(rules), len(columns.length), len(copies)))
    _lockstep_grid(columns, rules, cap, np.array(copies, np.int64), cost, speeds)
    return speeds


def rule_columns(tape: Tape, rule: StaticRule) -> Columns:
    """The tape's columns with the look-up that the rule copies from.

    Splices always use the default look-up; a rule with vLLM's own never splices.
    """
    if rule.vllm_match is None:
        return tape.columns
    found = tape.vllm_lookup(*rule.vllm_match)
    return tape.columns._replace(match=found.match, available=found.available, run=found.run)
