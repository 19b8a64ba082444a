"""Steps of a worker without requests, which are timed before anything is served.

The target runs, its logits are computed, and the drafter runs as often as is said. What vLLM's own
dummy steps leave out is left out here: sampling, the scheduler's work, and deciding.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import torch

from adaspec.cost.load import cost_from_document
from adaspec.errors import ServingError

MANY_FORWARDS = 4
"""Where nothing says how often the drafter runs at most: a forward takes what a forward takes."""
MOST_LOGITS = 1024
"""Tokens whose logits a dummy step computes at most: what is beyond is of prompts."""
MOST_WITHOUT_GRAPHS = 512
"""Tokens of a dummy step at most where there are no CUDA graphs: tokens beyond take what those
before take, and steps of thousands may take a processor a minute."""


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
def time_steps(worker: Any, kind: StepKind, repeats: int) -> list[float]:
    """Seconds of so many steps of a kind, directly behind each other and another one."""
    runner = worker.model_runner
    run = _run_v2 if is_v2(runner) else _run_v1
    marks = Marks(runner.device)
    for _ in range(1 + repeats):
        run(runner, kind, marks)
    return marks.seconds()[1:]


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
        _read_logits(drafter.model, drafter.hidden_states[:rows])
    _read_logits(runner.model, hidden[: min(kind.tokens, MOST_LOGITS)])
    marks.note()


def _read_logits(model: Any, hidden: torch.Tensor) -> None:
    """The likeliest tokens by a model's logits."""
    logits = model.compute_logits(hidden)
    if logits is not None:  # as on ranks that others compute them for
        logits.argmax(-1)
