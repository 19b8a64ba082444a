"""Judge static rules by the log of another policy: what their own path would have given.

A log of a live server cannot be replayed, but its texts are the same whoever drafts
(`replay/logged_path.py`). The load stays as it was logged.
"""

from __future__ import annotations

import math
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
from adaspec.replay.recording import Recording
from adaspec.trace.reader import TraceReader, open_traces

Array = NDArray[np.float64]
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
    for name in ("concurrency", *REPLAYED):
        if name in given:
            raise EvaluationError(
                f"--{flag_of(name)} is of replays, and a logged trace cannot be replayed "
                "(its steps and load are those that were logged): leave it out, or give a dense one"
            )


def read_log(
    readers: Sequence[TraceReader], wanted: Wanted
) -> tuple[Selection, list[LoggedRequest]]:
    """What is chosen of logged traces, and the chosen requests with their steps."""
    found, left_out = read_logged(readers, EvaluationError)
    requests = [each.request for each in found]
    selection = selection_of(readers, requests, wanted, left_out, neural=False)
    chosen = {id(request) for request in selection.requests}
    logged = [each for each in found if id(each.request) in chosen]
    if not all(each.steps["running"].all() for each in logged):
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
    counts = _resampled(log.recording, options)
    ran = [counts @ each for each in _ran(log, priced)]
    row = {"workload": ALL, "requests": len(logged)}
    rows = [row | {"policy": LOGGED, "estimates": {"shown": _figures(log, ran, ran)}}]
    for policy, rule in rules.items():
        plans = plans_of(log, rule, options.cap, priced)
        missing = _missing_support(log, plans.neural[log.at])
        if missing:
            raise EvaluationError(
                f"policy '{policy}': {missing}: log with a policy that drafts so, or "
                "record a dense trace"
            )
        *expected, steps_shown = path_of(log, plans, counts)
        estimate = {
            "revealed_share": float(steps_shown[0] / expected[-1][0]),
            "estimates": {"path": _figures(log, expected, ran)},
        }
        rows.append(row | {"policy": policy} | estimate)
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


def _resampled(recording: Recording, options: Options) -> Array:
    """How often each request stands in the sample itself, and in each replicate of it.

    It is (1 + replicates, requests); requests are resampled within workloads.
    """
    rng = np.random.default_rng([options.seed, 0x10661])
    counts = np.ones((1 + options.resamples, len(recording)))
    for workload in recording.workloads:
        chosen = recording.members(workload)
        size = len(chosen)
        counts[1:, chosen] = rng.multinomial(size, np.full(size, 1 / size), options.resamples)
    return counts


def _missing_support(log: Log, neural: Longs) -> str:
    """Why the log cannot tell of a rule that drafts so many neural tokens; empty where it can."""
    for token in range(1, int(neural.max(initial=0)) + 1):
        count = int(log.reached(token).sum())
        if count < MIN_REACHED:
            return (
                f"the log shows {count} times whether neural token {token} was accepted, "
                f"{MIN_REACHED} are needed"
            )
    share = float((neural > log.steps["shown"]).mean())
    if share > MAX_UNSUPPORTED:
        return (
            f"at {share:.0%} of the logged decisions it drafts farther than the log shows, at most "
            f"{MAX_UNSUPPORTED:.0%} may be so"
        )
    return ""


def _figures(log: Log, totals: Sequence[Array], logged: Sequence[Array]) -> dict[str, Any]:
    """Tokens per step and per second, and the lift over the logging policy, with intervals.

    Totals are tokens, seconds and steps, each by sample.
    """
    (tokens, seconds, steps), (logged_tokens, logged_seconds, _) = totals, logged
    smallest = int(np.bincount(log.recording.workload).min())
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


def _ran(log: Log, cost: CostModel) -> list[Array]:
    """Logged tokens, seconds and steps by request; those that the drafter drafted for held it."""
    neural, drafted = log.steps["neural_len"], log.steps["drafted"]
    copied = np.where(neural > 0, 0, drafted)
    drafts = np.stack([copied, neural, drafted - neural - copied], axis=1).astype(np.int64)
    holds = (np.bincount(log.request, neural) > 0)[log.request]
    context = log.recording.columns.prompt[log.request] + log.steps["position"]
    running = log.steps["running"].astype(np.int64)
    seconds = seconds_of(cost.constants(), running, context, drafts, holds)
    steps = np.minimum(log.steps["accepted"] + 1, log.left), seconds, np.ones(len(seconds))
    return [np.bincount(log.request, each).astype(np.float64) for each in steps]
