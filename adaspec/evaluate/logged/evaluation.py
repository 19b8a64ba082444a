"""Judge target policies by the log of another: the report's document.

What is estimated is per decision, at the logged states: what a policy would have emitted had it
decided there, and what that comes to in tokens per second at the load of the log. What its
decisions would have changed later, states and load, is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec import __version__
from adaspec.cost.model import CostModel
from adaspec.errors import EvaluationError
from adaspec.evaluate.intervals import bootstrap_ratio, interval
from adaspec.evaluate.logged.estimators import (
    DIRECT,
    DOUBLY_ROBUST,
    ESTIMATORS,
    PATH,
    WEIGHTED,
    Support,
    cells_of,
    emitted_tokens,
    sums_of,
    support_of,
    totals_of,
)
from adaspec.evaluate.logged.outcomes import Outcomes, Plans, alone_s, outcomes_of
from adaspec.evaluate.logged.path import every_position, path_totals
from adaspec.evaluate.logged.targets import plans_of
from adaspec.evaluate.options import ALL, NONE, Options, flag_of
from adaspec.evaluate.report import REPORT_SCHEMA
from adaspec.evaluate.selection import Wanted, check_names, distinct_names
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.replay.contender import check_distinct
from adaspec.replay.logged import Log, LoggedRequest, log_of, read_logged
from adaspec.replay.player import Contender
from adaspec.trace.reader import TraceReader, open_traces

Array = NDArray[np.float64]

LOGGED = "logged"
_USED = ("resamples", "seed", "cap", "jobs")
"""The options that logged traces leave a use."""
MIN_REACHED = 50
"""A neural token that fewer drafts reached is not judged."""
MAX_UNSUPPORTED = 0.2
"""A policy of which more decisions lack support is refused: the model would only extrapolate."""
MAX_UNWEIGHED = 0.01
"""With more, what only weighs outcomes is left out: it counts decisions without support as none."""
_MOSTLY = 0.5
"""The logging policy's own plan is likelier than this, an explored one is not."""


class Sample(NamedTuple):
    """The requests of a row, and how often each stands in each bootstrap replicate."""

    workload: str
    sizes: list[int]
    """Requests per workload."""
    counts: Array
    """(1 + replicates, requests); the first row is the sample itself."""

    @property
    def members(self) -> NDArray[np.bool_]:
        """The row's requests."""
        chosen: NDArray[np.bool_] = self.counts[0] > 0
        return chosen


def read_log(
    readers: Sequence[TraceReader], wanted: Wanted
) -> tuple[Log, dict[str, dict[str, int]]]:
    """The wanted requests of logged traces, and the number of the others by workload and reason."""
    found, unusable = read_logged(readers, EvaluationError)
    where = ", ".join(str(reader.path) for reader in readers)
    check_names([each.request for each in found], wanted, where)
    left_out = {
        name: Counter(reasons)
        for name, reasons in unusable.items()
        if wanted.workload in (None, name)
    }
    kept: list[LoggedRequest] = []
    for each in found:
        if wanted.workload not in (None, each.request.workload):
            continue
        reason = wanted.reason_against(each.request, neural=False)
        if reason is None:
            kept.append(each)
        else:
            left_out.setdefault(each.request.workload, Counter())[reason] += 1
    if not kept:
        total = sum(left_out.values(), Counter())
        reasons = "; ".join(f"{count} {why}" for why, count in total.items())
        raise EvaluationError(
            f"{where}: no logged request is left to judge by ({reasons or 'none was logged'}): "
            "log more traffic, or leave fewer out"
        )
    log = log_of(kept)
    if not log.running.all():
        raise EvaluationError(
            f"{where}: a step does not say how many requests ran, which its price depends on: log "
            "'running' with every step, as a server's trace_dir does"
        )
    return log, {name: dict(reasons) for name, reasons in left_out.items()}


def judge(
    log: Log, named: Sequence[Contender], cost: CostModel, options: Options
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of all policies, and notes; refuses policies that the log says too little of.

    The first rows are those of the logging policy itself and of no speculation. Steps are priced
    without deciding: what the logging policy spent on it is not known.
    """
    check_distinct(named)
    priced = cost.without_deciding()
    cells, samples = cells_of(log), samples_of(log, options.resamples, options.seed)
    logged = _logged_outcomes(log, priced)
    deterministic = bool((log.propensity == 1.0).all())
    weighable = not deterministic and not np.isnan(log.reach).any()
    ran = [totals_of(sums_of(log, logged, cells), sample.counts) for sample in samples]
    rows = []
    for sample, totals in zip(samples, ran, strict=True):
        row = _row(log, sample, LOGGED, totals.decisions[0])
        speeds = totals.base / totals.seconds
        values = (totals.base, totals.seconds, totals.decisions)
        row["estimates"] = {"shown": _figures(sample, values, speeds)}
        row["exploration"] = _exploration(log, sample, priced)
        rows.append(row)
    everywhere = every_position(log)
    others = (policy for policy in named if policy.name != NONE)
    for policy in (StaticPolicy(NONE, StaticRule()), *others):
        outcomes = outcomes_of(log, plans_of(log, policy, cost, options.cap), priced)
        _check_support(policy.name, support_of(log, outcomes, np.ones(len(log.at), np.bool_)))
        sums = sums_of(log, outcomes, cells)
        # A trained policy's decisions hang on its history, which off the logged path is not known.
        plans = None
        if isinstance(policy, StaticPolicy):
            plans = plans_of(everywhere, policy, cost, options.cap)
        for sample, own in zip(samples, ran, strict=True):
            support = support_of(log, outcomes, sample.members[log.request])
            row = _row(log, sample, policy.name, own.decisions[0]) | {
                "revealed_share": support.revealed,
                "unsupported_share": support.unsupported,
                "effective_decisions": support.effective if weighable else None,
            }
            speeds, totals = own.base / own.seconds, totals_of(sums, sample.counts)
            emitted = emitted_tokens(totals)
            row["estimates"] = estimates = dict.fromkeys(ESTIMATORS)
            for estimator in _given(support, weighable):
                values = (emitted[estimator], totals.seconds, totals.decisions)
                estimates[estimator] = _figures(sample, values, speeds)
            if plans is not None and not _missing(support):
                values = path_totals(log, everywhere, plans, priced, sums, sample.counts)
                estimates[PATH] = _figures(sample, values, speeds)
            rows.append(row)
    return rows, _notes(log, deterministic)


def _given(support: Support, weighable: bool) -> list[str]:
    """The estimators of the logged decisions that the log allows."""
    if _missing(support):
        return []
    if not weighable:
        return [DIRECT]
    return [DIRECT, *(WEIGHTED if support.unsupported <= MAX_UNWEIGHED else [DOUBLY_ROBUST])]


def samples_of(log: Log, resamples: int, seed: int) -> list[Sample]:
    """All requests, and those of each workload if there are several; resampled within workloads."""
    recording = log.recording
    rng = np.random.default_rng([seed, 0x10661])
    counts = np.zeros((1 + resamples, len(recording)))
    members = [recording.members(workload) for workload in recording.workloads]
    counts[0] = 1.0
    for chosen in members:
        size = len(chosen)
        counts[1:, chosen] = rng.multinomial(size, np.full(size, 1 / size), resamples)
    samples = [Sample(ALL, [len(chosen) for chosen in members], counts)]
    if len(members) > 1:
        for workload, chosen in zip(recording.workloads, members, strict=True):
            own = np.zeros_like(counts)
            own[:, chosen] = counts[:, chosen]
            samples.append(Sample(workload, [len(chosen)], own))
    return samples


def _row(log: Log, sample: Sample, policy: str, decisions: float) -> dict[str, Any]:
    steps = sample.members[log.request]
    return {
        "workload": sample.workload,
        "policy": policy,
        "requests": int(sample.members.sum()),
        "decisions": int(decisions),
        "running": float(log.running[steps].mean()),
    }


def _figures(sample: Sample, totals: tuple[Array, Array, Array], logged: Array) -> dict[str, Any]:
    """Tokens per step and per second, and the lift over the logging policy, with intervals.

    `totals` are tokens, seconds and steps.
    """
    ratio = bootstrap_ratio(min(sample.sizes))
    emitted, seconds, steps = totals
    speeds = emitted / seconds
    figures: dict[str, Any] = {}
    for name, values in (
        ("emitted_per_step", emitted / steps),
        ("tokens_per_s", speeds),
        ("lift_over_logged", speeds / logged - 1),
    ):
        figures[name] = float(values[0])
        found = interval(float(values[0]), values[1:], ratio)
        figures[f"{name}_ci95"] = None if found is None else list(found)
    return figures


def _logged_plans(log: Log) -> Plans:
    """What was proposed; requests that were ever drafted for by the neural drafter held it."""
    none = np.zeros(len(log.at), np.int32)
    copied = np.where(log.neural_len > 0, 0, log.drafted).astype(np.int32)
    spliced = np.where(log.neural_len > 0, log.drafted - log.neural_len, 0).astype(np.int32)
    holders = np.bincount(log.request, log.neural_len, len(log.recording)) > 0
    holds = holders[log.request]
    return Plans(copied, none, log.neural_len, spliced, none, log.neural_len, holds)


def _logged_outcomes(log: Log, cost: CostModel) -> Outcomes:
    """What came, with nothing left to estimate."""
    seconds = outcomes_of(log, _logged_plans(log), cost).seconds
    emitted = np.minimum(log.accepted + 1, log.left).astype(np.float64)
    return Outcomes(emitted, np.zeros((len(emitted), 0)), seconds)


def _exploration(log: Log, sample: Sample, cost: CostModel) -> dict[str, Any] | None:
    """What exploring cost, as a share of the tokens per second without; None if nobody explored.

    A log of which most is by chance has no policy that explores.

    Without it the logging policy's own plans count, each by one over its propensity. Forwards of
    explored neural drafts count in full, as if nobody else had wanted them: it is an upper bound.
    """
    explored = log.propensity < _MOSTLY
    share = float(explored[sample.members[log.request]].mean())
    if not 0 < share < _MOSTLY:
        return None
    outcomes, requests = _logged_outcomes(log, cost), len(log.recording)
    own = np.where(explored | np.isnan(log.propensity), 0.0, 1 / log.propensity)
    extra = np.where(explored, alone_s(log, _logged_plans(log), cost), 0.0)

    def summed(values: Array) -> Array:
        return sample.counts @ np.bincount(log.request, values, requests)

    without = summed(own * outcomes.base) / summed(own * outcomes.seconds)
    speeds = summed(outcomes.base) / summed(outcomes.seconds + extra)
    lost = 1 - speeds / without
    found = interval(float(lost[0]), lost[1:], bootstrap_ratio(min(sample.sizes)))
    return {
        "explored_share": share,
        "tokens_per_s_without": float(without[0]),
        "lost_share": float(lost[0]),
        "lost_share_ci95": None if found is None else list(found),
    }


def _missing(support: Support) -> str:
    """What the log lacks to judge a policy by; empty if nothing."""
    few = np.flatnonzero(support.reached < MIN_REACHED)
    if len(few):
        return (
            f"the log shows {support.reached[few[0]]} times whether neural token {few[0] + 1} was "
            f"accepted, {MIN_REACHED} are needed"
        )
    if support.unsupported > MAX_UNSUPPORTED:
        return (
            f"at {support.unsupported:.0%} of its decisions the logging policy would not have "
            f"drafted so far, at most {MAX_UNSUPPORTED:.0%} may be so"
        )
    return ""


def _check_support(name: str, support: Support) -> None:
    missing = _missing(support)
    if missing:
        raise EvaluationError(
            f"policy '{name}': {missing}: log with a policy that drafts so, or with \"explore\" "
            "(docs/serve.md), or record a dense trace"
        )


def _notes(log: Log, deterministic: bool) -> list[str]:
    if deterministic:
        return [
            "the logging policy was deterministic (propensity 1): only what the log and the text "
            'show, and the direct method, speak; serve with "explore" for the other estimates'
        ]
    if np.isnan(log.reach).any():
        return [
            "some steps do not say how likely longer drafts were (neural_propensity): only what "
            "the log and the text show, and the direct method, speak"
        ]
    return []


def refuse_replays(options: Options, **beside: object) -> None:
    """Refuse options of replays, which logged traces do not allow."""
    plain = Options()
    given = {
        name: getattr(options, name) != getattr(plain, name)
        for name in Options.__dataclass_fields__
        if name not in _USED
    }
    given |= {name: value is not None for name, value in beside.items()}
    for name, is_given in given.items():
        if is_given:
            raise EvaluationError(
                f"--{flag_of(name)} is of replays, and a logged trace cannot be replayed "
                "(its steps and load are those that were logged): leave it out, or give a dense one"
            )


def evaluate_log(
    folders: Sequence[Path],
    wanted: Wanted,
    named: Sequence[Contender],
    cost: CostModel,
    options: Options,
) -> dict[str, Any]:
    """The report's document on logged traces."""
    readers = open_traces(folders)
    log, left_out = read_log(readers, wanted)
    rows, notes = judge(log, named, cost, options)
    counts = Counter(request.workload for request in log.recording.requests)
    manifests = [reader.manifest for reader in readers]
    return {
        "schema": REPORT_SCHEMA,
        "adaspec": __version__,
        "kind": LOGGED,
        "cost": cost.name,
        "traces": {
            "sources": [str(reader.path) for reader in readers],
            "target": distinct_names(each.target for each in manifests),
            "drafter": distinct_names(each.drafter for each in manifests),
            "synthetic": any(each.synthetic for each in manifests),
            "requests": dict(sorted(counts.items())),
            "left_out": {name: dict(each) for name, each in sorted(left_out.items())},
        },
        "policies": [policy.name for policy in named],
        "seed": options.seed,
        "resamples": options.resamples,
        "cap": options.cap,
        "rows": rows,
        "headline": [],
        "notes": [*(warning for reader in readers for warning in reader.warnings), *notes],
    }
