"""What `adaspec record` does: prompts through vLLM, a dense trace out; a killed run goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaspec.errors import ServingError, TraceError
from adaspec.staging import check_place
from adaspec.trace import folder
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.writer import TraceWriter
from adaspec.vllm.engine import open_engine, prepare_vllm
from adaspec.vllm.names import engine_id
from adaspec.vllm.prompts import Prompt, read_prompts

Progress = Callable[[str, float, float], None]

_PATIENCE_S = 30.0
"""How long the recorder may take to have the last rows on disk."""
_LAST = "adaspec:last"
"""The id of a request whose only purpose is that those before it are noticed to have left."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to record, and how."""

    model: str
    draft: str | None
    prompts: Path
    out: Path
    k: int = 8
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    scramble: bool = False
    max_bytes: int = 10 << 30
    engine: dict[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's own, as `LLM()` takes them."""
    draft_method: str | None = None

    @property
    def scramble_key(self) -> Path:
        """Beside the trace, as long as the recording is not whole."""
        return self.out.with_name(f"{self.out.name}.scramble-key")

    @property
    def sampling(self) -> dict[str, Any]:
        """What the manifest says of sampling."""
        return {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Report:
    """How a recording went."""

    trace: str
    requests: int
    """In the trace now."""
    recorded: int
    """By this run."""
    found: int
    """Recorded by earlier runs."""
    refused: tuple[str, ...]
    """Prompts that vLLM would not take, with why."""
    missing: int
    """Prompts that were run and are not in the trace: too near the longest length, or lost."""


def record(task: Task, progress: Progress = lambda *_: None) -> Report:
    """Record what is not recorded yet; an `AdaspecError` says what stands in the way."""
    prompts = read_prompts(task.prompts)
    done = recorded_keys(task)
    open_prompts = [prompt for prompt in prompts if prompt.key not in done]
    refused: list[str] = []
    if open_prompts:
        refused = _run(task, open_prompts, progress)
    reader = finished(task)
    found = {key for key, _ in reader.request_keys()}
    asked = {prompt.key for prompt in prompts}
    missing = len(asked - found) - len(refused)
    if not missing and task.scramble:
        # Whoever has it reads the trace; it was kept so that a second run scrambles alike.
        task.scramble_key.unlink(missing_ok=True)
    return Report(
        trace=str(task.out),
        requests=len(found),
        recorded=len(found - done),
        found=len(asked & done),
        refused=tuple(refused),
        missing=missing,
    )


def recorded_keys(task: Task) -> set[tuple[str, str]]:
    """What the trace holds already; a `TraceError` where it is one of something else."""
    if not os.path.lexists(task.out):
        check_place(task.out, TraceError)
        return set()
    if task.out.is_dir() and not any(task.out.iterdir()):
        return set()
    if not task.out.is_dir():
        raise TraceError(f"{task.out}: is a file: choose another folder for the trace")
    reader = TraceReader(task.out)
    _check_same(task, reader.manifest)
    return {key for key, _ in reader.request_keys()}


def _check_same(task: Task, manifest: Manifest) -> None:
    cap = task.k if task.draft is not None else None
    expected = {
        "kind": "dense",
        "target": task.model,
        "drafter": task.draft,
        "draft_cap": cap,
        "sampling": task.sampling,
        "scrambled": task.scramble,
    }
    for name, mine in expected.items():
        theirs = getattr(manifest, name)
        if theirs != mine:
            raise TraceError(
                f"{task.out}: cannot be gone on with: {name} is {theirs!r} there and {mine!r} "
                "here: choose another folder"
            )
    if task.scramble and not task.scramble_key.exists():
        raise TraceError(
            f"{task.out}: its token ids are scrambled by a key that is no longer at "
            f"{task.scramble_key}: choose another folder"
        )


def _run(task: Task, prompts: list[Prompt], progress: Progress) -> list[str]:
    """Put all prompts through an engine; those that it would not take, with why."""
    prepare_vllm("recording")
    from vllm import SamplingParams

    from adaspec.vllm.doctor import plugin_finding

    # A worker without it would speculate as stock vLLM does, and record nothing.
    plugin = plugin_finding()
    if not plugin.ok:
        raise ServingError(f"{plugin.found}: {plugin.advice}")
    config: dict[str, Any] = {
        "method": "adaspec",
        "mode": "record",
        "trace_dir": str(task.out.resolve()),
        "max_trace_bytes": task.max_bytes,
        "sampling": task.sampling,
    }
    if task.draft is not None:
        config |= {"model": task.draft, "num_speculative_tokens": task.k}
        config["draft_method"] = task.draft_method
    if task.scramble:
        config["scramble_key"] = str(task.scramble_key.resolve())
    before = _rows(task.out)
    llm = open_engine(task.model, config, {"seed": task.seed, **task.engine})
    engine = llm.llm_engine

    def params(most: int) -> Any:
        return SamplingParams(temperature=task.temperature, max_tokens=most)

    refused = []
    waiting: Iterator[Prompt] = iter(prompts)
    tokenizer = llm.get_tokenizer()
    running = done = 0
    window = 2 * engine.vllm_config.scheduler_config.max_num_seqs
    exhausted = False
    while True:
        while running < window and not exhausted:
            prompt = next(waiting, None)
            if prompt is None:
                exhausted = True
                break
            name = engine_id(prompt.workload, prompt.id)
            try:
                tokens = prompt.tokens(tokenizer)
                most = params(prompt.max_tokens or task.max_tokens)
                engine.add_request(name, {"prompt_token_ids": tokens}, most)
            except ValueError as error:
                refused.append(f"{prompt.where}: {' '.join(str(error).split())[:200]}")
                done += 1
                continue
            running += 1
        if not running:
            break
        ended = sum(out.finished for out in engine.step())
        running, done = running - ended, done + ended
        progress("recording", done, len(prompts))
    engine.add_request(_LAST, {"prompt_token_ids": [0]}, params(1))
    while engine.has_unfinished_requests():
        engine.step()
    _await_rows(task.out, before + len(prompts) - len(refused))
    engine.engine_core.shutdown()
    _close_recorders(engine)
    return refused


def _close_recorders(engine: Any) -> None:
    """Finish the trace of an engine in this very process; others do as their process ends."""
    core = getattr(engine.engine_core, "engine_core", None)
    worker = getattr(getattr(core, "model_executor", None), "driver_worker", None)
    session = getattr(getattr(worker, "model_runner", None), "adaspec_session", None)
    if session is not None:
        session.audience.close()


def _rows(out: Path) -> int:
    try:
        return TraceReader(out).rows
    except (TraceError, OSError):
        return 0


def _await_rows(out: Path, expected: int) -> None:
    """Wait until so many rows are on disk, or no more come."""
    last, heard_s = -1, time.monotonic()
    while (rows := _rows(out)) < expected and time.monotonic() - heard_s < _PATIENCE_S:
        if rows != last:
            last, heard_s = rows, time.monotonic()
        time.sleep(0.5)


def finished(task: Task) -> TraceReader:
    """The trace, marked as finished even where an engine's end cut that off."""
    try:
        reader = TraceReader(task.out)
    except TraceError as error:
        raise TraceError(f"nothing was recorded: {error}") from None
    if folder.completed_shards(task.out) is None:
        TraceWriter(task.out, reader.manifest, append=True).close()
        reader = TraceReader(task.out)
    return reader
