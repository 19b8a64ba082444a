"""Judge static rules by the log of another policy: what their own path would have given.

A log of a live server cannot be replayed, but its texts are the same whoever drafts
(`replay/logged_path.py`). The load stays as it was logged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.errors import EvaluationError
from adaspec.evaluate.evaluation import REPLAYED, document_of, flag_of
from adaspec.evaluate.intervals import interval
from adaspec.evaluate.options import ALL, NONE, Options
from adaspec.evaluate.selection import Selection, Wanted, selection_of
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.replay.contender import check_distinct
from adaspec.replay.logged import Log, LoggedRequest, log_of, read_logged
from adaspec.replay.logged_path import path_of, plans_of, seconds_of
from adaspec.replay.player import Contender
from adaspec.trace.reader import TraceReader, open_traces

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]

LOGGED = "logged"
MIN_REACHED = 50
"""A neural token that fewer drafts reached is not judged."""
MAX_UNSUPPORTED = 0.2
"""A rule of which more decisions lack support is refused: the model would only extrapolate."""


def evaluate_log(
    folders: Sequence[Path],
    wanted: Wanted,
    named: Sequence[Contender],
    cost: CostModel,
    options: Options,
) -> dict[str, Any]:
    """The report's document on logged traces."""
    selection, logged = read_log(open_traces(folders), wanted)
    return document_of(selection, named, options, cost.name) | {
        "kind": LOGGED,
        "resamples": options.resamples,
        "cap": options.cap,
        "rows": judge(logged, named, cost, options),
        "headline": [],
        "notes": list(selection.warnings),
    }


def refuse_replays(given: Mapping[str, object]) -> None:
    """Refuse options of replays, which logged traces do not allow."""
    for name in ("concurrency", "protocol", *REPLAYED):
        if name in given:
            raise EvaluationError(
                f"--{flag_of(name)} is of replays, and a logged trace cannot be replayed "
                "(its steps and load are those that were logged): leave it out, or give a dense one"
            )


def read_log(
    readers: Sequence[TraceReader], wanted: Wanted
) -> tuple[Selection, list[LoggedRequest]]:
    """What is chosen of logged traces, and the chosen requests with their steps."""
    found, unusable = read_logged(readers, EvaluationError)
    left_out = {
        name: Counter(reasons)
        for name, reasons in unusable.items()
        if wanted.workload in (None, name)
    }
    requests = [each.request for each in found]
    selection = selection_of(readers, requests, wanted, left_out, neural=False)
    chosen = {id(request) for request in selection.requests}
    logged = [each for each in found if id(each.request) in chosen]
    if not all(each.running.all() for each in logged):
        raise EvaluationError(
            f"{', '.join(selection.sources)}: a step does not say how many requests ran, which its "
            "price depends on: log 'running' with every step, as a server's trace_dir does"
        )
    return selection, logged


def judge(
    logged: Sequence[LoggedRequest], named: Sequence[Contender], cost: CostModel, options: Options
) -> list[dict[str, Any]]:
    """The rows of what ran, of no speculation and of all policies; refuses those without support.

    Steps are priced without deciding: what the logging policy spent on it is not known.
    """
    check_distinct(named)
    rules = {NONE: StaticRule()} | {each.name: _rule_of(each) for each in named}
    log, priced = log_of(logged), cost.without_deciding()
    counts, workloads = _resampled(log, options), {ALL: np.ones(len(logged), np.bool_)}
    if len(log.recording.workloads) > 1:
        for at, workload in enumerate(log.recording.workloads):
            workloads[workload] = log.recording.workload == at
    by_request = _ran(log, priced)
    ran = {
        name: np.stack([counts[:, chosen] @ each[chosen] for each in by_request])
        for name, chosen in workloads.items()
    }
    rows = [
        _row(log, name, chosen, LOGGED)
        | {"estimates": {"shown": _figures(log, chosen, ran[name], ran[name])}}
        for name, chosen in workloads.items()
    ]
    for policy, rule in rules.items():
        plans = plans_of(log, rule, options.cap, priced)
        for name, chosen in workloads.items():
            unsupported, missing = _support(log, chosen, plans.neural[log.at])
            if missing and name == ALL:
                raise EvaluationError(
                    f"policy '{policy}': {missing}: log with a policy that drafts so, or "
                    "record a dense trace"
                )
            revealed = path = None
            if not missing:
                expected = path_of(log, plans, counts * chosen)
                _, _, steps, shown = expected[:, 0]
                revealed = float(shown / steps)
                path = _figures(log, chosen, expected, ran[name])
            shares = {"revealed_share": revealed, "unsupported_share": unsupported}
            rows.append(_row(log, name, chosen, policy) | shares | {"estimates": {"path": path}})
    return rows


def _rule_of(policy: Contender) -> StaticRule:
    """A policy's rule; refuses what a log cannot tell."""
    why = "it decides by what came before, which on its own path would have been something else"
    if isinstance(policy, StaticPolicy):
        rule = policy.rule
        if not (rule.needs_matching_draft or rule.least_percent or rule.memory):
            return rule
        why = "it reads drafts or earlier answers, of which a log holds few"
    raise EvaluationError(
        f"policy '{policy.name}' cannot be judged by a logged trace: {why}: record a dense one "
        "(adaspec record)"
    )


def _resampled(log: Log, options: Options) -> Array:
    """How often each request stands in the sample itself, and in each replicate of it.

    It is (1 + replicates, requests); requests are resampled within workloads.
    """
    rng = np.random.default_rng([options.seed, 0x10661])
    counts = np.ones((1 + options.resamples, len(log.recording)))
    for workload in log.recording.workloads:
        chosen = log.recording.members(workload)
        size = len(chosen)
        counts[1:, chosen] = rng.multinomial(size, np.full(size, 1 / size), options.resamples)
    return counts


def _support(log: Log, chosen: Bools, neural: Longs) -> tuple[float, str]:
    """The share of decisions at which a rule drafts farther than the log shows; what is missing."""
    steps = chosen[log.request]
    share = float((neural > log.shown)[steps].mean())
    for token in range(1, int(neural[steps].max(initial=0)) + 1):
        count = int(log.reached(token)[steps].sum())
        if count < MIN_REACHED:
            return share, (
                f"the log shows {count} times whether neural token {token} was accepted, "
                f"{MIN_REACHED} are needed"
            )
    if share > MAX_UNSUPPORTED:
        return share, (
            f"at {share:.0%} of the logged decisions it drafts farther than the log shows, at most "
            f"{MAX_UNSUPPORTED:.0%} may be so"
        )
    return share, ""


def _row(log: Log, workload: str, chosen: Bools, policy: str) -> dict[str, Any]:
    running = log.running[chosen[log.request]]
    return {
        "workload": workload,
        "policy": policy,
        "requests": int(chosen.sum()),
        "decisions": len(running),
        "running": float(running.mean()),
    }


def _figures(log: Log, chosen: Bools, totals: Array, logged: Array) -> dict[str, Any]:
    """Tokens per step and per second, and the lift over the logging policy, with intervals.

    Totals begin with tokens, seconds and steps, each by sample.
    """
    (tokens, seconds, steps), (logged_tokens, logged_seconds) = totals[:3], logged[:2]
    smallest = int(np.unique(log.recording.workload[chosen], return_counts=True)[1].min())
    # Resampling m requests understates their variance; one request says nothing about it.
    ratio = smallest / (smallest - 1) if smallest > 1 else math.inf
    figures = dict[str, Any]()
    for name, values in (
        ("emitted_per_step", tokens / steps),
        ("tokens_per_s", tokens / seconds),
        ("lift_over_logged", tokens / seconds / (logged_tokens / logged_seconds) - 1),
    ):
        figures[name] = float(values[0])
        found = interval(float(values[0]), values[1:], ratio)
        figures[f"{name}_ci95"] = None if found is None else list(found)
    return figures


def _ran(log: Log, cost: CostModel) -> list[NDArray[Any]]:
    """Logged tokens, seconds and steps by request; those that the drafter drafted for held it."""
    copied = np.where(log.neural_len > 0, 0, log.drafted)
    drafts = np.stack([copied, log.neural_len, log.drafted - log.neural_len - copied], axis=1)
    holds = (np.bincount(log.request, log.neural_len) > 0)[log.request]
    context = log.recording.columns.prompt[log.request] + log.position
    running, drafts = log.running.astype(np.int64), drafts.astype(np.int64)
    seconds = seconds_of(cost.constants(), running, context, drafts, holds)
    steps = np.minimum(log.accepted + 1, log.left), seconds, np.ones(len(seconds))
    return [np.bincount(log.request, each) for each in steps]
