"""Engines that commands of adaspec start: `record` runs prompts, `profile` times steps.

After a killed run of `record`, the same call records the missing prompts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from adaspec.cost.load import DEFAULT, cost_document, load_cost
from adaspec.errors import AdaspecError, ServingError, TraceError
from adaspec.files import check_writable
from adaspec.records import convert
from adaspec.trace.identity import model_name
from adaspec.trace.importers import chat_tokens, find_files, lines_of, name_of, workload_of
from adaspec.trace.reader import TraceReader, is_blank
from adaspec.trace.schema import CONFIDENCES
from adaspec.trace.writer import TraceWriter
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.measuring import Measured, Report, measure
from adaspec.vllm.options import Options
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE, in_one_line
from adaspec.vllm.plugin import register
from adaspec.vllm.recorder import engine_id

_FORMS = ("text", "messages", "prompt_token_ids")
"""The keys by which a prompt may be given."""
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
Progress = Callable[[str, float, float], None]
GOAL = 0.10
"""Mean error on held-out kinds of step that a profile should stay within."""
_MAX_WAIT_S = 30.0
"""How long an engine may take to write what it holds."""


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a line of a file says of a prompt."""

    workload: str
    id: str
    text: Annotated[str, Meta(min_length=1, description="a text")] | None = None
    messages: (
        Annotated[list[dict[str, Any]], Meta(min_length=1, description="a list of objects")] | None
    ) = None
    prompt_token_ids: (
        Annotated[list[Token], Meta(min_length=1, description="a list of token ids")] | None
    ) = None
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None


class Prompt(Line, frozen=True, kw_only=True):
    """A prompt to record, with its name and its place in a file."""

    where: str

    @property
    def key(self) -> tuple[str, str]:
        """The prompt's key in a trace."""
        return self.workload, self.id

    def tokens(self, tokenizer: Any) -> list[int]:
        """The prompt's token ids."""
        if self.prompt_token_ids is not None:
            return self.prompt_token_ids
        if self.messages is None:
            return list(tokenizer.encode(self.text))
        return chat_tokens(tokenizer, self.messages, self.where)


def read_prompts(file: Path) -> list[Prompt]:
    """All prompts of a file; raises a `TraceError` that names the first invalid line."""
    numbers: Counter[str] = Counter()
    prompts: dict[tuple[str, str], Prompt] = {}
    for source, where, record in lines_of(find_files([file], "*.jsonl")):
        workload = name_of(record.get("workload", workload_of(source)), "workload", where)
        names = {
            "workload": workload,
            "id": name_of(record.get("id", numbers[workload]), "id", where),
        }
        numbers[workload] += 1
        line = convert(record | names, Line, where, TraceError)
        forms = [key for key in _FORMS if getattr(line, key) is not None]
        if len(forms) != 1:
            found = ", ".join(forms) or "none"
            raise TraceError(f"{where}: needs one of {', '.join(_FORMS)}; found {found}")
        prompt = Prompt(**structs.asdict(line), where=where)
        if prompt.key in prompts:
            raise TraceError(
                f"{where}: id {prompt.id!r} of workload {prompt.workload!r} stands already in "
                f"{prompts[prompt.key].where}: rename or remove one"
            )
        prompts[prompt.key] = prompt
    if not prompts:
        raise TraceError(f"{file}: holds no prompts")
    return list(prompts.values())


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The options of `adaspec record`."""

    model: str
    draft: str | None
    prompts: Path
    out: Path
    k: int
    max_tokens: int
    temperature: float
    seed: int
    engine: dict[str, Any]
    """vLLM's arguments for `LLM()`."""
    draft_method: str | None


@dataclass(frozen=True, slots=True)
class RecordingResult:
    """The result of a recording."""

    trace: str
    requests: int
    """How many requests the trace now has."""
    recorded: int
    """How many requests this run recorded."""
    found: int
    """How many prompts earlier runs had recorded."""
    refused: tuple[str, ...]
    """The prompts that vLLM did not take, each with the reason."""
    missing: int
    """How many prompts were run but are not in the trace, being too near the maximum length or
    lost."""


def record(options: RecordOptions, progress: Progress = lambda *_: None) -> RecordingResult:
    """Record the prompts that are not in the trace yet; raises an `AdaspecError` if that fails."""
    prompts = read_prompts(options.prompts)
    recorded_before = recorded_keys(options)
    unrecorded = [prompt for prompt in prompts if prompt.key not in recorded_before]
    refused = _run(options, unrecorded, progress) if unrecorded else []
    keys = {key for key, _ in finished(options).request_keys()}
    prompt_keys = {prompt.key for prompt in prompts}
    return RecordingResult(
        trace=str(options.out),
        requests=len(keys),
        recorded=len(keys - recorded_before),
        found=len(prompt_keys & recorded_before),
        refused=tuple(refused),
        missing=len(prompt_keys - keys) - len(refused),
    )


def recorded_keys(options: RecordOptions) -> set[tuple[str, str]]:
    """The keys that are already in the trace; raises a `TraceError` if it cannot be continued."""
    if not os.path.lexists(options.out):
        check_writable(options.out, TraceError)
        return set()
    if not options.out.is_dir():
        raise TraceError(f"{options.out}: is a file: choose another folder for the trace")
    if is_blank(options.out):
        return set()
    reader, cap = TraceReader(options.out), options.k if options.draft is not None else None
    expected = structs.replace(
        reader.manifest,
        target=model_name(options.model),
        drafter=None if options.draft is None else model_name(options.draft),
        neural_cap=cap,
        draft_cap=cap,
        confidences=CONFIDENCES if cap else (),
    )
    difference = expected.difference(reader.manifest)
    if difference:
        raise TraceError(
            f"{options.out}: cannot be gone on with: {difference}: choose another folder"
        )
    return {key for key, _ in reader.request_keys()}


def _run(options: RecordOptions, prompts: list[Prompt], progress: Progress) -> list[str]:
    """Run all prompts in an engine; returns those that it refused, each with the reason."""
    prepare_vllm("recording")
    from vllm import SamplingParams

    from adaspec.vllm.doctor import plugin_problem

    # A worker without the plug-in would speculate like stock vLLM and record nothing.
    problem = plugin_problem()
    if problem:
        raise ServingError(problem)
    config: dict[str, Any] = {
        "method": "adaspec",
        "mode": "record",
        "trace_dir": str(options.out.resolve()),
        "model": options.draft,
        "draft_method": options.draft_method,
        "num_speculative_tokens": None if options.draft is None else options.k,
    }
    llm = open_engine(options.model, config, {"seed": options.seed, **options.engine})
    engine = llm.llm_engine

    refused: list[str] = []
    waiting = iter(prompts)
    tokenizer = llm.get_tokenizer()
    running = done = 0
    window = 2 * engine.vllm_config.scheduler_config.max_num_seqs
    while True:
        while running < window and (prompt := next(waiting, None)) is not None:
            longest = prompt.max_tokens or options.max_tokens
            try:
                tokens = {"prompt_token_ids": prompt.tokens(tokenizer)}
                params = SamplingParams(temperature=options.temperature, max_tokens=longest)
                engine.add_request(engine_id(prompt.workload, prompt.id), tokens, params)
                running += 1
            except ValueError as error:
                refused.append(f"{prompt.where}: {' '.join(str(error).split())[:200]}")
                done += 1
        if not running:
            break
        ended = sum(out.finished for out in engine.step())
        running, done = running - ended, done + ended
        progress("recording", done, len(prompts))
    _end(engine)
    return refused


def _end(engine: Any) -> None:
    """End an engine whose requests have all ended, once it has written what it recorded."""
    core = getattr(engine.engine_core, "engine_core", None)
    if core is not None:  # a process of its own would do so by itself
        engine.step()  # in which it is seen that nobody runs any more
    worker = getattr(getattr(core, "model_executor", None), "driver_worker", None)
    session = None if worker is None else worker.model_runner.adaspec_session
    engine.engine_core.shutdown(timeout=_MAX_WAIT_S)  # which takes the runner from its worker
    if session is not None:  # other processes write as they end
        session.observers.notify("close")


def finished(options: RecordOptions) -> TraceReader:
    """The trace, which is marked as finished even if the engine's end cut that off."""
    try:
        reader = TraceReader(options.out)
    except TraceError as error:
        raise TraceError(f"nothing was recorded: {error}") from None
    if reader.warnings:
        TraceWriter(options.out, reader.manifest).close()
        reader = TraceReader(options.out)
    return reader


@dataclass(frozen=True, slots=True)
class Profile:
    """The costs of this machine, and of what engine they are."""

    measured: Measured
    runner: str
    """The model runner that ran the steps, V1 or V2."""
    engine: dict[str, Any]
    """Version, arithmetic and drafter of the engine that was measured."""

    @property
    def complaints(self) -> list[str]:
        """What speaks against using it."""
        off = self.measured.fit.mean_error
        said = (
            f"the fit is off by {off:.1%} on held-out steps, the goal is {GOAL:.0%}: stop what "
            "else runs here, or give more --minutes"
        )
        return [said] if off > GOAL else []

    def document(self) -> dict[str, Any]:
        """The profile as `adaspec profile --json` prints it."""
        return {
            "schema": 2,
            "runner": self.runner,
            "cost": cost_document(self.measured.cost),
            "fit": structs.asdict(self.measured.fit),
            "complaints": self.complaints,
            "steps": [asdict(step) for step in self.measured.steps],
            "seconds": self.measured.took_s,
            "engine": self.engine,
        }


def profile_machine(
    model: str,
    draft: str | None,
    draft_method: str | None,
    arguments: dict[str, Any],
    minutes: float,
    report: Report,
) -> Profile:
    """Start vLLM's `LLM(arguments)` with a drafter, measure and fit, or raise an `AdaspecError`."""
    report("starting vLLM", 0, 1)
    # What is asked of the engine's workers are functions, which only this process can hand them.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    prepare_vllm("profiling")
    config = {"method": "adaspec", "guard": False, "model": draft, "draft_method": draft_method}
    config |= {"cost": DEFAULT}  # so nothing is measured at the start
    llm = open_engine(model, config, {"disable_log_stats": True, **arguments})
    report("starting vLLM", 1, 1)
    settings = llm.llm_engine.vllm_config
    options: Options = getattr(settings.speculative_config, OPTIONS_ATTRIBUTE)
    try:
        measured = measure(
            llm.collective_rpc,
            load_cost(DEFAULT),
            enough_s=60 * minutes,
            most_s=max(60 * minutes, 60.0),
            rounds=None,
            report=report,
        )
    finally:
        llm.llm_engine.engine_core.shutdown()
    name = f"{Path(model).name or model} on {options.hardware}"
    cost = structs.replace(measured.cost, name=name, target=model, hardware=options.hardware)
    facts = {
        "vllm": installed_version(),
        "dtype": str(settings.model_config.dtype).removeprefix("torch."),
        "drafter": draft,
        "arguments": arguments,
    }
    return Profile(measured._replace(cost=cost), options.runner, facts)


def prepare_vllm(purpose: str) -> None:
    """Import vLLM and register adaspec with it; raises a `ServingError` if vLLM is missing."""
    # By default vLLM logs to standard output, which is for the command's result.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise ServingError(
            f"{purpose} needs vLLM, which cannot be imported here ({error}): install it beside "
            "adaspec, then see 'adaspec doctor'"
        ) from error
    from adaspec.vllm.patching import shield_llvmlite

    register()
    shield_llvmlite()


def open_engine(
    model: str, speculative_config: dict[str, Any] | None, arguments: dict[str, Any]
) -> Any:
    """Start vLLM's `LLM` of a model; raises an `AdaspecError` with the reason if it fails."""
    from vllm import LLM

    from adaspec.vllm.head_kind import check_there

    check_there("model", model)
    try:
        return LLM(model, speculative_config=speculative_config, **arguments)
    except AdaspecError:
        raise
    except Exception as error:
        why = in_one_line(error, 600)
        raise ServingError(f"vLLM does not start with '{model}': {why}") from error
