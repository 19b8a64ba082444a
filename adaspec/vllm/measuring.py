"""Measures what steps cost as a server starts, where its operator names no costs.

The process that schedules tells all ranks which dummy steps to run, kind after kind, by one clock,
and takes the times of the first rank. The costs that are fitted to them go to every rank, and to
the scheduler, before anything is served. So ranks decide alike, whatever their own times are.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from adaspec.cost.fit import MeasuredStep, fit_cost
from adaspec.cost.load import cost_document, cost_from_document
from adaspec.cost.model import CostModel
from adaspec.errors import CostError, ServingError
from adaspec.vllm.dummy_steps import Kind, Steps, steps_of, take_costs, time_steps
from adaspec.vllm.options import Options
from adaspec.vllm.patching import ATTRIBUTE, in_one_line

NAME = "measured at start"
SIZES = 12
"""The sizes of steps that are timed in graphs, or at all where there are none."""
BEYOND = (1.25, 2.0)
"""Those that are timed outside the graphs, as multiples of the largest graph."""
SHORT, LONG = 0, 1024
"""Known tokens of each request in the steps that are timed."""
ROUNDS = 3
"""Every kind of step is visited so often, all kinds in turn, if there is time."""
REPEATS = 3
"""Steps that are timed at each visit."""
SLOW_S = 0.1
"""Behind a visit whose steps took so long, one step is timed: there is little noise in it, and less
time."""
ENOUGH_S, MOST_S = 10.0, 60.0
"""No further visit begins after so long: where enough kinds of step were timed, and in any case."""
LEAST_KINDS = 24
"""Fewer kinds of step than these say too little."""

Ask = Callable[..., Any]
"""Calls a function with every rank's worker and these arguments; returns the first rank's result.
"""

log = logging.getLogger("vllm.adaspec")


class Measured(NamedTuple):
    """Costs that were measured, from how much, and in what time."""

    cost: CostModel
    kinds: int
    took_s: float


def warm_up_and_measure(original: Callable[..., None], executor: Any, *args: Any) -> None:
    """An executor's `compile_or_warm_up_model`; then its engine's costs, if they are asked for."""
    original(executor, *args)
    speculative = executor.vllm_config.speculative_config
    options: Options | None = getattr(speculative, ATTRIBUTE, None)
    if options is None or not options.measures:
        return
    assert options.costs is not None
    base = cost_from_document(options.costs, "costs")
    try:
        if executor.parallel_config.distributed_executor_backend == "external_launcher":
            raise ServingError("every rank has a scheduler of its own, and none may stand apart")
        measured = measure(lambda called, *more: executor.collective_rpc(called, args=more)[0])
    except Exception as error:
        log.warning(
            "adaspec: what steps cost here could not be measured (%s): decisions weigh the costs "
            "'%s'; 'adaspec profile' measures others, and the key 'cost' names them",
            in_one_line(error, 300),
            base.name,
        )
        return
    log.info("adaspec: costs %s in %.1f s: %s", NAME, measured.took_s, in_words(measured.cost))
    cost = completed(measured.cost, base, options)
    document = cost_document(cost)
    executor.collective_rpc(take_costs, args=(document,))
    object.__setattr__(speculative, ATTRIBUTE, dataclasses.replace(options, costs=document))


def measure(ask: Ask, clock: Callable[[], float] = perf_counter) -> Measured:
    """Time dummy steps of an engine, and fit its costs to the medians of each kind."""
    began_s = clock()
    steps: Steps = ask(steps_of)
    kinds = kinds_of(steps)
    times: dict[Kind, list[float]] = {}
    least = min(LEAST_KINDS, len(kinds))
    # In random order, whatever is left out for want of time is of all sorts.
    draw = np.random.default_rng(0)
    order = [kinds[at] for _ in range(ROUNDS) for at in draw.permutation(len(kinds))]
    repeats = REPEATS
    for kind in order:
        if clock() - began_s > (MOST_S if len(times) < least else ENOUGH_S):
            break
        taken: list[float] = ask(time_steps, kind, repeats)
        times.setdefault(kind, []).extend(taken)
        repeats = 1 if min(taken) > SLOW_S else REPEATS
    if len(times) < least:
        raise CostError(
            f"{len(times)} of {len(kinds)} kinds of step were timed in {MOST_S:.0f} s, too few"
        )
    medians = [
        MeasuredStep(
            rows=steps.rows(kind),
            tokens=kind.tokens,
            context_tokens=steps.rows(kind) * kind.context,
            forwards=kind.forwards,
            step_s=float(np.median(taken)),
        )
        for kind, taken in times.items()
    ]
    cost, _ = fit_cost(medians, NAME, steps.captured)
    return Measured(cost, len(times), clock() - began_s)


def kinds_of(steps: Steps) -> list[Kind]:
    """The kinds of step to time: sizes in graphs and beyond, short and long contexts, forwards."""
    captured = [size for size in steps.captured if size <= steps.most_tokens]
    sizes = thinned(captured or range(1, steps.most_tokens + 1), SIZES)
    if captured:
        beyond = {min(int(times * captured[-1]), steps.most_tokens) for times in BEYOND}
        sizes += sorted(beyond - set(sizes))
    contexts = sorted({SHORT, min(LONG, steps.most_context)})
    return [
        Kind(tokens, context, forwards)
        for tokens, context, forwards in itertools.product(sizes, contexts, steps.forwards)
    ]


def thinned(sizes: Sequence[int], count: int) -> list[int]:
    """At most so many of these ascending sizes, in equal ratios from the first to the last."""
    wanted = np.geomspace(sizes[0], sizes[-1], count).round(6)
    at = np.minimum(np.searchsorted(sizes, wanted), len(sizes) - 1)
    return [sizes[each] for each in np.unique(at).tolist()]


def completed(cost: CostModel, base: CostModel, options: Options) -> CostModel:
    """Measured costs with what dummy steps do not tell: what the drafter takes to read prompts, and
    the host to decide."""
    return dataclasses.replace(
        cost,
        draft_prompt_s=base.draft_prompt_s,
        sync=base.sync,
        async_=base.async_,
        hardware=options.hardware,
    )


def in_words(cost: CostModel) -> str:
    """What steps cost, in one line."""
    costs = cost.constants()
    parts = [f"{1e3 * cost.seconds[0]:.3g} ms a step", f"{1e6 * costs.mean_token_s:.3g} us a token"]
    if cost.largest_graph:
        largest = cost.tokens.index(cost.largest_graph)
        jump_s = cost.seconds[largest + 1] - cost.seconds[largest]
        parts.append(f"{1e3 * jump_s:.3g} ms beyond graphs of {cost.largest_graph} tokens")
    if cost.forward_s or cost.forward_per_row_s:
        forward = f"{1e3 * cost.forward_s:.3g} ms and {1e6 * cost.forward_per_row_s:.3g} us a row"
        parts.append(f"{forward} a forward of the drafter")
    parts.append(f"{1e9 * cost.context_s:.3g} us per 1,000 tokens of context")
    return ", ".join(parts)
