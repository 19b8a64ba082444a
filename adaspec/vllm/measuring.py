"""Measures what steps cost as a server starts, where its operator names no costs.

The process that schedules tells all ranks which dummy steps to run, kind after kind, by one clock,
and takes the times of the first rank. The costs that are fitted to them go to every rank, and to
the scheduler, before anything is served. So ranks decide alike, whatever their own times are.

A dummy step runs the target, computes its logits, and runs the drafter as often as is said. What
vLLM's own dummy steps leave out is left out: sampling, the scheduler's work, and deciding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import structs

from adaspec.cost.fit import MeasuredStep, fit_cost
from adaspec.cost.load import FitQuality, cost_document, cost_from_document
from adaspec.cost.model import CostModel, StepShape, drafting_s
from adaspec.errors import CostError, ServingError
from adaspec.vllm.options import Options
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE, in_one_line
from adaspec.vllm.session.drafting import read_logits

NAME = "measured at start"
MOST_SIZES = 12
"""The sizes of steps that are timed in graphs, or at all where there are none."""
BEYOND = (1.25, 2.0)
"""Those that are timed outside the graphs, as multiples of the largest graph."""
SHORT_CONTEXT, LONG_CONTEXT = 256, 1024
"""Known tokens of each request in the steps that are timed."""
LONG_EVERY = 3
"""One in so many sizes is timed with a long context, too."""
ROUNDS = 3
"""Every size and context is visited so often, if there is time."""
REPEATS = 3
"""Steps of each kind that are timed at a visit."""
SLOW_S = 0.05
"""Behind a visit whose steps took so long, a step of each kind is timed: time is better spent on
another visit, when the machine does something else."""
ENOUGH_S, MOST_S = 15.0, 60.0
"""No further visit begins after so long: where each was visited once, and in any case."""
LEAST_KINDS = 24
"""Fewer kinds of step than these say too little."""
MANY_FORWARDS = 4
"""Where nothing says how often the drafter runs at most: a forward takes what a forward takes."""
MOST_LOGITS = 1024
"""Tokens whose logits a dummy step computes at most: what is beyond is of prompts."""
MOST_WITHOUT_GRAPHS = 128
"""Tokens of a dummy step at most where there are no CUDA graphs: tokens beyond take what those
before take, and a processor takes a second for hundreds of them."""

Ask = Callable[..., Any]
"""vLLM's `collective_rpc`: what a function returns of every rank's worker and these arguments."""

Report = Callable[[str, float, float], None]
"""Told of a stage how much of it is done, of how much."""

log = logging.getLogger("vllm.adaspec")


class Measured(NamedTuple):
    """Costs that were measured, from what, and in what time."""

    cost: CostModel
    fit: FitQuality
    steps: list[MeasuredStep]
    """One per kind of step: its median."""
    took_s: float


def measure_at_start(executor: Any, options: Options) -> None:
    """Measure an engine's costs, and have its ranks and its scheduler decide by them."""
    assert options.costs is not None
    base = cost_from_document(options.costs, "costs")
    try:
        if executor.parallel_config.distributed_executor_backend == "external_launcher":
            raise ServingError("every rank has a scheduler of its own, and none may stand apart")
        measured = measure(executor.collective_rpc, base, most_s=MOST_S, rounds=ROUNDS)
    except Exception as error:
        log.warning(
            "adaspec: what steps cost here could not be measured (%s): decisions weigh the costs "
            "'%s'; 'adaspec profile' measures others, and the key 'cost' names them",
            in_one_line(error, 300),
            base.name,
        )
        return
    log.info("adaspec: costs %s in %.1f s: %s", NAME, measured.took_s, in_words(measured.cost))
    document = cost_document(structs.replace(measured.cost, hardware=options.hardware))
    executor.collective_rpc(take_costs, args=(document,))
    speculative = executor.vllm_config.speculative_config
    options = structs.replace(options, costs=document)
    object.__setattr__(speculative, OPTIONS_ATTRIBUTE, options)


def measure(
    ask: Ask,
    base: CostModel,
    clock: Callable[[], float] = perf_counter,
    enough_s: float = ENOUGH_S,
    most_s: float = MOST_S,
    rounds: int | None = ROUNDS,
    report: Report = lambda *_: None,
) -> Measured:
    """Time dummy steps of an engine, and fit its costs to the medians of each kind.

    Steps that differ by their forwards alone are timed in turns, so that a machine that is slow for
    a while does not seem to draft slowly or for nothing. The next visit is to the size and context
    that took the least time so far: all are visited once, and then the small ones, which serving is
    mostly made of, more often than the large ones. Measuring ends when each was visited in so many
    `rounds`; None: when the time is over. What deciding takes is as in `base`: dummy steps do not
    tell.
    """
    began_s = clock()
    steps: Steps = ask(steps_of)[0]
    draw = np.random.default_rng(0)
    # In random order, whatever is left out for want of time is of all sorts.
    groups = groups_of(steps)
    draw.shuffle(groups)
    spent_s, visits = np.zeros(len(groups)), np.zeros(len(groups), np.int64)
    kinds = len(groups) * len(steps.forwards)
    times: dict[StepKind, list[float]] = {}
    repeats = 1
    while rounds is None or visits.min() < rounds:
        visited_s = clock()
        report("measuring steps", int(visited_s - began_s), int(enough_s))
        if visited_s - began_s > (enough_s if visits.all() else most_s):
            break
        at = int(spent_s.argmin())
        taken: list[list[float]] = ask(time_steps, args=(groups[at], repeats))[0]
        for kind, each in zip(groups[at], taken, strict=True):
            times.setdefault(kind, []).extend(each)
        visits[at] += 1
        spent_s[at] += clock() - visited_s
        repeats = 1 if min(map(min, taken)) > SLOW_S else REPEATS
    if len(times) < min(LEAST_KINDS, kinds):
        raise CostError(
            f"{len(times)} of {kinds} kinds of step were timed in {most_s:.0f} s, too few"
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
    cost, fit = fit_cost(medians, NAME, steps.captured)
    cost = structs.replace(
        cost,
        draft_prompt_s=_draft_prompt_s(medians, cost) or base.draft_prompt_s,
        decide_s=base.decide_s,
        decide_per_row_s=base.decide_per_row_s,
    )
    return Measured(cost, fit, medians, clock() - began_s)


def _draft_prompt_s(medians: Sequence[MeasuredStep], cost: CostModel) -> float:
    """Seconds that the drafter takes to read a token of a prompt: in its first forward, it reads
    what the target reads, and a step of more tokens than rows reads prompts."""
    alone = {
        (each.tokens, each.context_tokens): each.step_s for each in medians if not each.forwards
    }
    costs, each_s = cost.constants(), []
    for step in medians:
        without_s = alone.get((step.tokens, step.context_tokens))
        prompt_tokens = step.tokens - step.rows
        if step.forwards == 1 and without_s is not None and 2 * prompt_tokens >= step.tokens:
            shape = StepShape(step.rows, step.context_tokens, 0, 1, prompt_tokens=prompt_tokens)
            each_s.append((step.step_s - without_s - drafting_s(costs, shape)) / prompt_tokens)
    return max(float(np.median(each_s)), 0.0) if each_s else 0.0


def groups_of(steps: Steps) -> list[list[StepKind]]:
    """The kinds of step to time, those together that differ by their forwards alone.

    Sizes in graphs and beyond; all of them with a short context, some with a long one.
    """
    captured = [size for size in steps.captured if size <= steps.most_tokens]
    sizes = thinned(captured or range(1, steps.most_tokens + 1), MOST_SIZES)
    if captured:
        beyond = {min(int(times * captured[-1]), steps.most_tokens) for times in BEYOND}
        sizes += sorted(beyond - set(sizes))
    short, long = (min(each, steps.most_context) for each in (SHORT_CONTEXT, LONG_CONTEXT))
    groups = [(size, short) for size in sizes]
    groups += [(size, long) for size in sizes[::LONG_EVERY] if long > short]
    return [
        [StepKind(tokens, context, forwards) for forwards in steps.forwards]
        for tokens, context in groups
    ]


def thinned(sizes: Sequence[int], count: int) -> list[int]:
    """At most so many of these ascending sizes, in equal ratios from the first to the last."""
    wanted = np.geomspace(sizes[0], sizes[-1], count).round(6)
    at = np.minimum(np.searchsorted(sizes, wanted), len(sizes) - 1)
    return [sizes[each] for each in np.unique(at).tolist()]


def in_words(cost: CostModel) -> str:
    """What steps cost, in one line."""
    costs = cost.constants()
    parts = [f"{1e3 * cost.seconds[0]:.3g} ms a step", f"{1e6 * costs.mean_token_s:.3g} us a token"]
    if cost.forward_s:
        parts.append(f"{1e3 * cost.forward_s:.3g} ms a forward of the drafter")
    parts.append(f"{1e9 * cost.context_s:.3g} us per 1,000 tokens of context")
    return ", ".join(parts)


class StepKind(NamedTuple):
    """A kind of step."""

    tokens: int
    context: int
    """Known tokens of each row."""
    forwards: int


class Steps(NamedTuple):
    """What steps a worker can run."""

    captured: tuple[int, ...]
    """The sizes of CUDA graphs, ascending; empty where there are none."""
    most_tokens: int
    most_rows: int
    most_context: int
    """Known tokens of a row, beside those that a step runs on."""
    forwards: tuple[int, ...]
    """How often the drafter runs in steps that are worth timing."""

    def rows(self, kind: StepKind) -> int:
        """The rows of a step: a token each, as long as there are rows."""
        return min(kind.tokens, self.most_rows)


def steps_of(worker: Any) -> Steps:
    """The steps that this worker can run."""
    from vllm.config.compilation import CUDAGraphMode

    runner = worker.model_runner
    config, scheduler = runner.vllm_config.compilation_config, runner.scheduler_config
    graphs = config.cudagraph_mode not in (None, CUDAGraphMode.NONE)
    captured = tuple(sorted(config.cudagraph_capture_sizes or ())) if graphs else ()
    if is_v2(runner):
        speculator = runner.speculator
        most_forwards = runner.adaspec_session.most_forwards
        rows = min(runner.max_num_reqs, runner.max_num_tokens // speculator.num_query_per_req)
        tokens = runner.max_num_tokens - rows * speculator.num_extra_query_per_req
        longest = runner.num_speculative_steps
    elif runner.lora_config is not None:
        raise ServingError("every dummy step of V1 loads LoRA adapters before it runs")
    else:
        setup = runner.adaspec_session.serving.setup
        most_forwards = min(setup.neural_cap, MANY_FORWARDS)
        rows, tokens = scheduler.max_num_seqs, runner.max_num_tokens
        longest = setup.cap
    if not captured:
        tokens = min(tokens, rows * (1 + longest), MOST_WITHOUT_GRAPHS)
    # No row of a step is longer than this.
    each = -(-tokens // rows)
    return Steps(
        captured=captured,
        most_tokens=tokens,
        most_rows=rows,
        most_context=max(runner.max_model_len - each - most_forwards, 0),
        forwards=tuple(sorted({0, min(1, most_forwards), most_forwards})),
    )


@torch.inference_mode()
def time_steps(worker: Any, kinds: Sequence[StepKind], repeats: int) -> list[list[float]]:
    """Seconds of so many steps of each of these kinds, in turns, directly behind another step."""
    runner = worker.model_runner
    run = _run_v2 if is_v2(runner) else _run_v1
    marks = Marks(runner.device)
    with blocks_of_their_own(runner):
        for kind in [kinds[0], *repeats * list(kinds)]:
            run(runner, kind, marks)
    seconds = marks.seconds()[1:]
    return [seconds[at :: len(kinds)] for at in range(len(kinds))]


@contextmanager
def blocks_of_their_own(runner: Any) -> Iterator[None]:
    """Let every row of a dummy step read KV blocks of its own, as the rows of requests do.

    With vLLM's dummy block tables all rows read one block, which then lies in a cache: on a CPU,
    contexts seem to cost half of what they do.
    """
    others = max(runner.kv_cache_config.num_blocks - 1, 1)  # than block 0, which is nobody's

    def spread(table: torch.Tensor) -> torch.Tensor:
        at = torch.arange(table.numel(), dtype=table.dtype, device=table.device)
        return table.copy_(1 + at.view(table.shape[::-1]).T % others)

    tables = runner.block_tables if is_v2(runner) else runner.input_batch.block_table
    if is_v2(runner):
        dummy = tables.get_dummy_block_tables
        tables.get_dummy_block_tables = lambda rows: tuple(map(spread, dummy(rows)))
    else:
        for each in tables.block_tables:
            spread(torch.from_numpy(each.get_numpy_array()))
    try:
        yield
    finally:
        if is_v2(runner):
            del tables.get_dummy_block_tables
        else:
            tables.clear()


def take_costs(worker: Any, document: dict[str, Any]) -> None:
    """Decide by these costs from now on."""
    worker.model_runner.adaspec_session.take_costs(cost_from_document(document, "costs"))


def is_v2(runner: Any) -> bool:
    """Whether it is a model runner V2."""
    return hasattr(runner, "speculator")


class Marks:
    """Moments in the work of a device: by turns, when a step began there and when it ended."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._moments: list[Any] = []

    def note(self) -> None:
        """The moment at which all is done that was launched so far."""
        moment: Any = perf_counter()
        if self._on_gpu:
            event: Any = torch.cuda.Event
            moment = event(enable_timing=True)
            moment.record()
        self._moments.append(moment)

    def seconds(self) -> list[float]:
        """What each step took."""
        pairs = zip(self._moments[::2], self._moments[1::2], strict=True)
        if not self._on_gpu:
            return [ended - begun for begun, ended in pairs]
        self._moments[-1].synchronize()
        return [begun.elapsed_time(ended) / 1e3 for begun, ended in pairs]


def _run_v2(runner: Any, kind: StepKind, marks: Marks) -> None:
    speculator = runner.speculator
    speculator.adaspec_dummy_forwards = kind.forwards
    # Before the target runs, a dummy step with a context waits for the device, as no step of a
    # request does, and one with LoRA loads adapters.
    runner.step_timing.forward_start = marks.note
    try:
        hidden, _ = runner._dummy_run(kind.tokens, context_len=kind.context, skip_eplb=True)
    finally:
        del runner.step_timing.forward_start
        speculator.adaspec_dummy_forwards = None
    _read_logits(runner.model, hidden[: min(kind.tokens, MOST_LOGITS)])
    marks.note()


def _run_v1(runner: Any, kind: StepKind, marks: Marks) -> None:
    drafter, rows = runner.drafter, min(kind.tokens, runner.scheduler_config.max_num_seqs)
    longest = drafter.num_speculative_tokens
    drafter.num_speculative_tokens = kind.forwards
    marks.note()
    try:
        hidden, _ = runner._dummy_run(
            kind.tokens,
            force_attention=True,
            profile_seq_lens=kind.context - (-kind.tokens // rows),
            skip_eplb=True,
        )
    finally:
        drafter.num_speculative_tokens = longest
    for _ in range(kind.forwards):  # which the drafter's own dummy steps leave out
        read_logits(drafter.model.compute_logits(drafter.hidden_states[:rows]))
    _read_logits(runner.model, hidden[: min(kind.tokens, MOST_LOGITS)])
    marks.note()


def _read_logits(model: Any, hidden: torch.Tensor) -> None:
    """The likeliest tokens by a model's logits."""
    logits = model.compute_logits(hidden)
    if logits is not None:  # as on ranks that others compute them for
        logits.argmax(-1)
