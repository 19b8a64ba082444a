"""Static rules at full speed: a rule's path through a request does not depend on the load.

The path (what is drafted and what is emitted, step by step) is walked once per rule and request;
the closed loop then only adds up what each step costs in the company it runs in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, decoding_shape, step_s
from adaspec.draft.match import Ints
from adaspec.jit import compiled
from adaspec.policy.static import StaticRule
from adaspec.replay import closed_loop
from adaspec.replay.closed_loop import ClosedLoop
from adaspec.replay.recording import Columns, Recording

Longs = NDArray[np.int64]
Steps = NDArray[Any]

STEP = np.dtype([(name, "i2") for name in ("copied", "drafted", "forwards", "accepted", "emitted")])
"""One step of a path: its tokens that are copied in place of neural ones, and all its drafted,
accepted and emitted tokens."""


class Paths(NamedTuple):
    """Requests' paths under one rule; that of request r has steps start[r] .. start[r + 1]."""

    start: Longs
    steps: Steps
    paid_drafts: int
    """Drafted tokens that a row is charged for at least: in an async engine the rule's longest
    draft, else 0."""


@compiled
def _walk(
    columns: Columns, rule: Longs, cap: int, requests: Ints, paths: Paths, is_async: bool
) -> int:
    """Fill in the path of each of these requests; how many steps there are.

    In an async engine nobody knows which rows will draft, or how much. So every step runs all
    forwards, and every row verifies the longest draft.
    """
    min_match, ngram_len, neural_len, splice_min_match, splice_len, always_drafts = rule
    # Taken out of their tuple once: that takes as long as a step does.
    offset, length, neural_accepted = columns.offset, columns.length, columns.neural
    match, available, run = columns.match, columns.available, columns.run
    splice_match_length = columns.splice_match_length
    splice_match_available = columns.splice_match_available
    tokens_known = splice_match_length.shape[1] > 0
    start, steps = paths.start, paths.steps
    count = 0
    for r in requests:
        start[r] = count
        p = 1
        while p < length[r]:
            i, left = offset[r] + p, length[r] - p
            copied = neural = spliced = accepted = 0
            if ngram_len > 0 and match[i] >= min_match:
                copied = min(ngram_len, available[i], cap)
                accepted = min(run[i], copied)
            else:
                neural = min(neural_len, cap)
                room = min(splice_len, cap - neural)
                if neural > 0:
                    accepted = min(neural_accepted[i], neural)
                if neural > 0 and room > 0:
                    whole = accepted == neural
                    if tokens_known and not whole:
                        if splice_match_length[i, neural - 1] >= splice_min_match:
                            spliced = min(room, splice_match_available[i, neural - 1])
                    elif neural < left and match[i + neural] >= splice_min_match:
                        spliced = min(room, available[i + neural])
                        if whole:
                            accepted += min(spliced, run[i + neural])
            step = steps[count]
            step.copied, step.drafted = copied, copied + neural + spliced
            step.forwards = min(neural_len, cap) if is_async or always_drafts else neural
            step.emitted = min(accepted + 1, left)
            step.accepted = min(accepted, left)
            count += 1
            p += step.emitted
        start[r + 1] = count
    return count


@compiled
def run_paths(
    columns: Columns, paths: Paths, order: Ints, concurrency: int, costs: Costs, holds: bool
) -> ClosedLoop:
    """The closed loop over paths, run to its end."""
    loop = closed_loop.start(columns, order, concurrency, holds)
    # Sums stay in locals while no request ends: this loop tunes rules, and runs most of all.
    steps, first, totals = paths.steps, paths.start, loop.totals[0]
    request, entry = loop.request, loop.entry
    prompt, length = columns.prompt, columns.length
    step_of, end = np.empty(concurrency, np.int64), np.empty(concurrency, np.int64)
    for row in range(concurrency):
        step_of[row], end[row] = first[request[row]], first[request[row] + 1]
    time, context = totals.time_s, closed_loop.context_tokens(loop)
    paid = concurrency * paths.paid_drafts
    count = tokens = all_accepted = all_drafted = neural_steps = 0
    # Handing the loop over takes as long as a step does: only where there are prompts to read.
    waiting = loop.state[0].prompt_tokens
    while True:
        drafted = forwards = emitted = 0
        ended = False
        for row in range(concurrency):
            step = steps[step_of[row]]
            drafted += step.drafted
            all_accepted += step.accepted
            forwards = max(forwards, step.forwards)
            emitted += step.emitted
            step_of[row] += 1
            ended |= step_of[row] == end[row]
        idle = max(paid - drafted, 0)
        shape = decoding_shape(concurrency, context, drafted, forwards, holds, idle)
        if waiting > 0:
            time += closed_loop.step_seconds(loop, costs, shape)
            waiting = 0
        else:
            time += step_s(costs, shape)
        context += emitted
        count += 1
        tokens += emitted
        all_drafted += drafted
        neural_steps += forwards > 0
        if ended:
            for row in range(concurrency):
                if step_of[row] == end[row]:
                    context -= prompt[request[row]] + length[request[row]]
            totals.time_s, following = time, loop.state[0].following
            closed_loop.replace_ended(loop, step_of == end)
            if not closed_loop.goes_on(loop):
                break
            for row in range(concurrency):
                if entry[row] >= following:
                    step_of[row], end[row] = first[request[row]], first[request[row] + 1]
                    context += prompt[request[row]] + 1
            time, waiting = totals.time_s, loop.state[0].prompt_tokens
    totals.tokens, totals.steps, totals.row_steps = tokens, count, count * concurrency
    totals.accepted, totals.drafted = all_accepted, all_drafted
    totals.neural_steps = neural_steps
    return loop


def walk_rule(
    recording: Recording,
    rule: StaticRule,
    cap: int,
    is_async: bool = False,
    requests: Ints | None = None,
) -> Paths:
    """The path of one rule through these requests, which ascend, or through all."""
    columns = recording.columns
    if requests is None:
        requests = recording.members(None)
    paths = Paths(
        np.empty(len(recording) + 1, np.int64),
        np.empty(len(columns.neural), STEP),
        min(rule.longest_draft, cap) if is_async else 0,
    )
    count = _walk(columns, rule.packed(), cap, requests, paths, is_async)
    return paths._replace(steps=paths.steps[:count].copy())
