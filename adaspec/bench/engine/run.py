"""A whole benchmark: what runs, in which order, and the report of it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from adaspec.bench.engine import client, comparison, prompts
from adaspec.bench.engine.comparison import Difference, Key
from adaspec.bench.engine.methods import (
    ADASPEC,
    NONE,
    STATIC,
    BenchmarkOptions,
    Candidate,
    Drafter,
    unavailable,
)
from adaspec.bench.engine.report import Measured, document
from adaspec.bench.engine.rounds import Load, Round, RoundsFile, Runner, fingerprint
from adaspec.bench.engine.server import Server, Servers, ended_by_signals
from adaspec.bench.engine.settings import candidates_at, find_settings
from adaspec.cost.load import load_cost
from adaspec.errors import BenchError
from adaspec.evaluate.options import ALL, Progress
from adaspec.files import check_writable
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.doctor import plugin_finding, target_named
from adaspec.vllm.drafters import drafter_method
from adaspec.vllm.machine import hardware

ROUNDS = "rounds.jsonl"
LOGS = "logs"


def bench_engine(options: BenchmarkOptions, force: bool, report: Progress) -> dict[str, Any]:
    """Measure every round that is not there yet; returns the report of all."""
    _check_out(options.out, force)
    texts = prompts.read(options)
    trained = prompts.trained_on(options.policies)
    if options.cost is not None:
        load_cost(options.cost)
    _check_vllm(options)
    calls, left_out = prompts.leave_out_trained(
        prompts.tokenized(options, texts), options.traces, trained
    )
    drafter = None
    if options.draft is not None:
        asked = options.draft_method
        method = drafter_method(options.draft, target_named(options.model), method=asked)
        drafter = Drafter(options.draft, method, asked)
    absent = unavailable(options.methods, drafter)
    settings = find_settings(options, trained, report)
    cells = [ALL, *sorted(calls)] if options.workloads and len(calls) > 1 else [ALL]
    candidates = {
        concurrency: candidates_at(concurrency, options, absent, settings, drafter)
        for concurrency in options.concurrency
    }
    (options.out / LOGS).mkdir(parents=True, exist_ok=True)
    if force:
        (options.out / ROUNDS).unlink(missing_ok=True)
    served_on = {"hardware": hardware(), "vllm": installed_version()}
    file = RoundsFile(
        options.out / ROUNDS, fingerprint(options, calls, candidates, served_on["vllm"])
    )
    measured = []
    with ended_by_signals():
        for concurrency in options.concurrency:
            dealt, repeated = prompts.deal(
                calls, cells, options.rounds, options.requests, concurrency, options.seed
            )
            load = Load(concurrency, candidates[concurrency], cells, dealt, repeated)
            with Servers(partial(_start, options)) as servers:
                Runner(options, load, servers, file, absent, report).run()
                rounds = [
                    each for each in file.first(options.rounds) if each.concurrency == concurrency
                ]
                differing = _differences(options, servers, load, rounds)
            measured.append(Measured(load, rounds, differing))
    notes = []
    if left_out:
        notes.append(f"{left_out:,} prompts that a policy was trained on were left out")
    if not options.traces:
        notes.append("no --traces: settings are usual ones, not the best for this load")
        if trained:
            notes.append("no --traces: prompts that a policy was trained on cannot be told")
    return document(options, measured, settings, absent, notes, served_on)


def _differences(
    options: BenchmarkOptions, servers: Servers, load: Load, rounds: Sequence[Round]
) -> list[Difference]:
    """Every output at a load that differs from that of no speculation."""
    expected: dict[Key, Sequence[int]] = {}
    for each in rounds:
        if each.candidate == NONE:
            for answer in each.answers:
                expected.setdefault(answer.key, answer.tokens)
    names = {candidate.name for candidate in load.candidates}
    outputs = [
        (each.candidate, answer.key, answer.tokens)
        for each in rounds
        if each.candidate in names
        for answer in each.answers
        # If the benchmark was killed before no speculation's round, nothing is expected yet.
        if answer.key in expected
    ]
    texts = {call.key: call.prompt for calls in load.dealt.values() for call in calls}

    def best_tokens(prompt: Sequence[int]) -> dict[int, float]:
        return client.best_tokens(servers.running(load.candidates[0]).address, prompt)

    return comparison.differences(expected, outputs, texts, best_tokens, near_tie(options))


def near_tie(options: BenchmarkOptions) -> float:
    """The most by which two tokens' log-probabilities may differ and still be a tie."""
    if options.near_tie is not None:
        return options.near_tie
    dtype = str(options.engine.get("dtype", "bfloat16"))
    return comparison.NOISE.get(dtype, comparison.NOISE["bfloat16"])


def _check_out(out: Path, force: bool) -> None:
    if not os.path.lexists(out):
        check_writable(out, BenchError)
        return
    if not out.is_dir():
        raise BenchError(f"{out}: not a folder: name one that the results go to")
    if force or (out / ROUNDS).exists():
        return
    # A benchmark that was killed while its first servers started has left only logs.
    if any(path.name != LOGS for path in out.iterdir()):
        raise BenchError(f"{out}: is there already and holds no benchmark: choose another folder")


def _check_vllm(options: BenchmarkOptions) -> None:
    """Refuse where no server could start, or would not know adaspec."""
    if importlib.util.find_spec("vllm") is None:
        raise BenchError(
            "comparing servers needs vLLM, which is not installed here: install it beside adaspec, "
            "then see 'adaspec doctor'"
        )
    plugin = plugin_finding()
    if not plugin.ok and {STATIC, ADASPEC} & set(options.methods):
        raise BenchError(f"{plugin.found}: {plugin.advice}")


def _start(options: BenchmarkOptions, candidate: Candidate) -> Server:
    # Prompts come again in later rounds, and the evaluator charges every prefill: none is cached.
    engine = {"enable_prefix_caching": False, **options.engine}
    name = "".join(sign if sign.isalnum() else "-" for sign in candidate.name)[:80]
    digest = hashlib.blake2b(candidate.name.encode(), digest_size=4).hexdigest()
    return Server(options.model, candidate, engine, options.out / LOGS / f"{name}-{digest}.log")
