"""A whole benchmark: who runs, in which order, and what is made of it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from adaspec.bench.engine import agreement, client, entrants
from adaspec.bench.engine.agreement import Difference, Key
from adaspec.bench.engine.deck import deal
from adaspec.bench.engine.entrants import Drafter, Entrant
from adaspec.bench.engine.fingerprint import fingerprint
from adaspec.bench.engine.ledger import Ledger
from adaspec.bench.engine.lineup import line_up
from adaspec.bench.engine.race import Race
from adaspec.bench.engine.report import Comparison, document
from adaspec.bench.engine.server import Server, Stable, ended_by_signals
from adaspec.bench.engine.settings import Settings, rank_settings
from adaspec.bench.engine.task import Task
from adaspec.bench.engine.traffic import Call
from adaspec.bench.engine.unseen import leave_out_trained, trained_on
from adaspec.bench.lookup import BenchError
from adaspec.bench.machine import Pace
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.evaluate.closed_loop import ALL
from adaspec.evaluate.options import Progress
from adaspec.staging import check_place
from adaspec.vllm.prompts import Prompt, read_prompts

LEDGER = "rounds.jsonl"
LOGS = "logs"


def bench_engine(task: Task, force: bool, report: Progress) -> dict[str, Any]:
    """Measure what is not measured yet, and the report of everything."""
    _check_out(task.out, force)
    prompts = _prompts(task)
    trained = trained_on(task.policies)
    if task.cost is not None:
        load_cost(task.cost)
    _check_vllm(task)
    calls, left_out = leave_out_trained(_calls(task, prompts), task.traces, trained)
    drafter = _drafter(task)
    absent = entrants.missing(task.methods, drafter)
    settings = _settings(task, trained, report)
    cells = [ALL, *sorted(calls)] if task.workloads and len(calls) > 1 else [ALL]
    policies: Sequence[str | None] = task.policies or (None,)
    lineups = {
        load: line_up(task.methods, absent, settings, load, drafter, policies, task.cost)
        for load in task.concurrency
    }
    (task.out / LOGS).mkdir(parents=True, exist_ok=True)
    if force:
        (task.out / LEDGER).unlink(missing_ok=True)
    served_on = _served_on()
    ledger = Ledger(task.out / LEDGER, fingerprint(task, calls, lineups, served_on["vllm"]))
    comparisons = []
    pace = Pace()
    with ended_by_signals():
        for load, lineup in lineups.items():
            dealt, repeated = deal(calls, cells, task.rounds, task.requests, load, task.seed)
            start = partial(_start, task)
            with Stable(start) as stable:
                race = Race(task, load, lineup, cells, dealt, stable, ledger, absent, report, pace)
                race.run()
                differences = _compare(task, race, calls)
            comparisons.append(Comparison(load, lineup, dealt, differences, repeated))
    entries = ledger.first_rounds(task.rounds)
    return document(task, entries, comparisons, cells, settings, absent, left_out, served_on)


def _served_on() -> dict[str, str]:
    from adaspec.vllm.machine import hardware
    from adaspec.vllm.signatures import installed_version

    return {"hardware": hardware(), "vllm": installed_version()}


def _compare(task: Task, race: Race, calls: dict[str, list[Call]]) -> list[Difference]:
    """Every output at a load that is not that of no speculation."""
    entries = race.ledger.first_rounds(task.rounds)
    here = [entry for entry in entries if entry.concurrency == race.load]
    expected: dict[Key, Sequence[int]] = {}
    for entry in here:
        if entry.entrant == entrants.NONE:
            for answer in entry.answers:
                expected.setdefault((answer.workload, answer.id), answer.tokens)
    known = {entrant.name for entrant in race.lineup}
    outputs = [
        (entry.entrant, (answer.workload, answer.id), answer.tokens)
        for entry in here
        if entry.entrant in known
        for answer in entry.answers
        # A runner-up that was killed before no speculation's round has nothing to be held against.
        if (answer.workload, answer.id) in expected
    ]
    prompts = {(call.workload, call.id): call.prompt for each in calls.values() for call in each}

    def best_tokens(prompt: Sequence[int]) -> dict[int, float]:
        return client.best_tokens(race.stable.lead_out(race.lineup[0]).address, prompt)

    return agreement.compare(expected, outputs, prompts, best_tokens, near_tie(task))


def near_tie(task: Task) -> float:
    """How far apart two tokens' log-probabilities may be and still be a tie."""
    if task.near_tie is not None:
        return task.near_tie
    dtype = str(task.engine.get("dtype", "bfloat16"))
    return agreement.NOISE.get(dtype, agreement.NOISE["bfloat16"])


def _check_out(out: Path, force: bool) -> None:
    if not os.path.lexists(out):
        check_place(out, BenchError)
        return
    if not out.is_dir():
        raise BenchError(f"{out}: not a folder: name one that the results go to")
    if force or (out / LEDGER).exists():
        return
    # A benchmark that was killed as its first servers started has left nothing but their logs.
    if any(path.name != LOGS for path in out.iterdir()):
        raise BenchError(f"{out}: is there already and holds no benchmark: choose another folder")


def _check_vllm(task: Task) -> None:
    """Refuse where no server could start, or would not know adaspec."""
    if importlib.util.find_spec("vllm") is None:
        raise BenchError(
            "comparing servers needs vLLM, which is not installed here: install it beside adaspec, "
            "then see 'adaspec doctor'"
        )
    from adaspec.vllm.doctor import plugin_finding

    plugin = plugin_finding()
    if not plugin.ok and {entrants.STATIC, entrants.ADASPEC} & set(task.methods):
        raise BenchError(f"{plugin.found}: {plugin.advice}")


def _prompts(task: Task) -> list[Prompt]:
    """Every prompt, each under a name of its own."""
    prompts = [prompt for file in task.prompts for prompt in read_prompts(file)]
    seen: dict[Key, str] = {}
    for prompt in prompts:
        if prompt.key in seen:
            raise BenchError(
                f"{prompt.where}: id {prompt.id!r} of workload {prompt.workload!r} stands already "
                f"in {seen[prompt.key]}: rename or remove one"
            )
        seen[prompt.key] = prompt.where
    return prompts


def _calls(task: Task, prompts: Sequence[Prompt]) -> dict[str, list[Call]]:
    """Every prompt as token ids, by workload."""
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(task.model)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BenchError(f"the tokenizer of '{task.model}' cannot be read: {said}") from error
    found: dict[str, list[Call]] = {}
    for prompt in prompts:
        tokens = tuple(int(token) for token in prompt.tokens(tokenizer))
        most = min(prompt.max_tokens or task.max_tokens, task.max_tokens)
        found.setdefault(prompt.workload, []).append(Call(*prompt.key, tokens, most))
    return found


def _drafter(task: Task) -> Drafter | None:
    if task.draft is None:
        return None
    from adaspec.vllm.doctor import target_named
    from adaspec.vllm.translation import head_method

    asked = task.draft_method
    method = head_method(task.draft, target_named(task.model), asked=asked)
    return Drafter(task.draft, method, asked)


def _settings(task: Task, trained: frozenset[str], report: Progress) -> Settings:
    if not task.traces:
        return Settings()
    cost = load_cost(task.cost or DEFAULT)
    return rank_settings(
        task.traces, trained, cost, task.concurrency, task.max_tokens, task.seed, report
    )


def _start(task: Task, entrant: Entrant) -> Server:
    # Prompts come again in later rounds: what is cached of them would flatter everybody, and the
    # evaluator charges every prefill.
    engine = {"enable_prefix_caching": False, **task.engine}
    name = "".join(sign if sign.isalnum() else "-" for sign in entrant.name)[:80]
    digest = hashlib.blake2b(entrant.name.encode(), digest_size=4).hexdigest()
    return Server(task.model, entrant, engine, task.out / LOGS / f"{name}-{digest}.log")
