"""Judge static rules by the log of another policy: what their own path would have given.

A log of a live server cannot be replayed, but its texts are the same whoever drafts
(`replay/logged_path.py`). The load stays as it was logged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec import __version__
from adaspec.cost.model import CostModel
from adaspec.errors import EvaluationError
from adaspec.evaluate.intervals import bootstrap_ratio, interval
from adaspec.evaluate.options import ALL, NONE, Options, flag_of
from adaspec.evaluate.render.contents import Contents, Part, Section
from adaspec.evaluate.render.figures import Figure
from adaspec.evaluate.render.table import (
    NULL,
    Table,
    Text,
    code,
    decimal,
    foreign,
    percent,
    plain,
    signed_percent,
    signed_range,
    simple_table,
)
from adaspec.evaluate.report import REPORT_SCHEMA
from adaspec.evaluate.report_folder import EvaluationReport
from adaspec.evaluate.selection import Wanted, check_names, distinct_names
from adaspec.policy.static import StaticPolicy, StaticRule
from adaspec.replay.contender import check_distinct
from adaspec.replay.logged import Log, log_of, read_logged
from adaspec.replay.logged_path import path_of, plans_of, row_of, seconds_of
from adaspec.replay.player import Contender
from adaspec.trace.reader import TraceReader, open_traces

Array = NDArray[np.float64]
Longs = NDArray[np.int64]

LOGGED = "logged"
_USED = ("resamples", "seed", "cap", "jobs")
"""The options that logged traces leave a use."""
MAX_NEURAL = 32
"""The longest neural draft that is judged by a log."""
MIN_REACHED = 50
"""A neural token that fewer drafts reached is not judged."""
MAX_UNSUPPORTED = 0.2
"""A rule of which more decisions lack support is refused: the model would only extrapolate."""


class Sample(NamedTuple):
    """The requests of a row, and how often each stands in each bootstrap replicate."""

    workload: str
    smallest: int
    """Requests of the smallest workload."""
    counts: Array
    """(1 + replicates, requests); the first row is the sample itself."""


def read_log(readers: Sequence[TraceReader], wanted: Wanted) -> tuple[Log, dict[str, Any]]:
    """The wanted requests of logged traces, and the number of the others by workload and reason."""
    found, unusable = read_logged(readers, EvaluationError)
    where = ", ".join(str(reader.path) for reader in readers)
    check_names([each.request for each in found], wanted, where)
    left_out, kept = {name: Counter(reasons) for name, reasons in unusable.items()}, []
    for each in found:
        reason = wanted.reason_against(each.request, neural=False)
        if reason is not None:
            left_out.setdefault(each.request.workload, Counter())[reason] += 1
        elif wanted.workload in (None, each.request.workload):
            kept.append(each)
    if wanted.workload is not None:
        left_out = {name: why for name, why in left_out.items() if name == wanted.workload}
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
    return log, {name: dict(reasons) for name, reasons in sorted(left_out.items())}


def judge(
    log: Log, named: Sequence[Contender], cost: CostModel, options: Options
) -> list[dict[str, Any]]:
    """The rows of what ran, of no speculation and of all policies; refuses those without support.

    Steps are priced without deciding: what the logging policy spent on it is not known.
    """
    check_distinct(named)
    priced, samples = cost.without_deciding(), samples_of(log, options.resamples, options.seed)
    by_request = [np.bincount(log.request, each) for each in _logged(log, priced)]
    ran = [[_summed(sample.counts, each) for each in by_request] for sample in samples]
    rows = [
        _row(log, sample, LOGGED) | {"estimates": {"shown": _figures(sample, totals, totals)}}
        for sample, totals in zip(samples, ran, strict=True)
    ]
    others = [policy for policy in named if policy.name != NONE]
    for policy in (StaticPolicy(NONE, StaticRule()), *others):
        plans = plans_of(log, _rule_of(policy), options.cap, priced)
        neural = plans.neural[row_of(log)]
        _, missing = _support(log, neural, samples[0])
        if missing:
            raise EvaluationError(
                f"policy '{policy.name}': {missing}: log with a policy that drafts so, or record "
                "a dense trace"
            )
        for sample, totals in zip(samples, ran, strict=True):
            unsupported, missing = _support(log, neural, sample)
            revealed = path = None
            if not missing:
                found = path_of(log, plans, sample.counts)
                revealed = float(found.shown[0] / found.steps[0])
                path = _figures(sample, (found.tokens, found.seconds, found.steps), totals)
            shares = {"revealed_share": revealed, "unsupported_share": unsupported}
            rows.append(_row(log, sample, policy.name) | shares | {"estimates": {"path": path}})
    return rows


def _rule_of(policy: Contender) -> StaticRule:
    """A policy's rule; refuses what a log cannot tell."""
    if not isinstance(policy, StaticPolicy):
        why = "it decides by what came before, which on its own path would have been something else"
    elif policy.rule.agree or policy.rule.least_percent:
        why = "it reads drafts, of which a log holds few"
    elif policy.rule.memory:
        why = "a log does not say which earlier answers were known"
    elif policy.rule.neural_len > MAX_NEURAL:
        why = f"drafts of at most {MAX_NEURAL} neural tokens are judged by a log"
    else:
        return policy.rule
    raise EvaluationError(
        f"policy '{policy.name}' cannot be judged by a logged trace: {why}: record a dense one "
        "(adaspec record)"
    )


def _support(log: Log, neural: Longs, sample: Sample) -> tuple[float, str]:
    """The share of decisions at which a rule drafts farther than the log shows; what is missing."""
    steps = sample.counts[0][log.request] > 0
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


def samples_of(log: Log, resamples: int, seed: int) -> list[Sample]:
    """All requests, and those of each workload if there are several; resampled within workloads."""
    recording, rng = log.recording, np.random.default_rng([seed, 0x10661])
    counts = np.ones((1 + resamples, len(recording)))
    members = {workload: recording.members(workload) for workload in recording.workloads}
    for chosen in members.values():
        size = len(chosen)
        counts[1:, chosen] = rng.multinomial(size, np.full(size, 1 / size), resamples)
    samples = [Sample(ALL, min(map(len, members.values())), counts)]
    for workload, chosen in members.items() if len(members) > 1 else ():
        own = np.zeros_like(counts)
        own[:, chosen] = counts[:, chosen]
        samples.append(Sample(workload, len(chosen), own))
    return samples


def _row(log: Log, sample: Sample, policy: str) -> dict[str, Any]:
    steps = sample.counts[0][log.request] > 0
    return {
        "workload": sample.workload,
        "policy": policy,
        "requests": int(sample.counts[0].sum()),
        "decisions": int(steps.sum()),
        "running": float(log.running[steps].mean()),
    }


def _figures(sample: Sample, totals: Sequence[Array], logged: Sequence[Array]) -> dict[str, Any]:
    """Tokens per step and per second, and the lift over the logging policy, with intervals.

    Totals are tokens, seconds and steps.
    """
    (tokens, seconds, steps), (logged_tokens, logged_seconds, _) = totals, logged
    figures: dict[str, Any] = {}
    for name, values in (
        ("emitted_per_step", tokens / steps),
        ("tokens_per_s", tokens / seconds),
        ("lift_over_logged", tokens / seconds / (logged_tokens / logged_seconds) - 1),
    ):
        figures[name] = float(values[0])
        found = interval(float(values[0]), values[1:], bootstrap_ratio(sample.smallest))
        figures[f"{name}_ci95"] = None if found is None else list(found)
    return figures


def _summed(counts: Array, values: NDArray[Any]) -> Array:
    """The sum of each sample, over the requests that it is about."""
    drawn = counts.any(axis=0)
    summed: Array = np.tensordot(counts[:, drawn], values[drawn], 1)
    return summed


def _logged(log: Log, cost: CostModel) -> Array:
    """Tokens, seconds and 1 for each logged step; requests that the drafter drafted for held it."""
    copied = np.where(log.neural_len > 0, 0, log.drafted)
    drafts = np.stack([copied, log.neural_len, log.drafted - log.neural_len - copied], axis=1)
    holds = (np.bincount(log.request, log.neural_len, len(log.recording)) > 0)[log.request]
    facts = (each.astype(np.int64) for each in (log.running, log.context_tokens, drafts))
    seconds = seconds_of(cost.constants(), *facts, holds)
    emitted = np.minimum(log.accepted + 1, log.left)
    return np.stack([emitted, seconds, np.ones(len(seconds))])


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
            "left_out": left_out,
        },
        "policies": [policy.name for policy in named],
        "seed": options.seed,
        "resamples": options.resamples,
        "cap": options.cap,
        "rows": judge(log, named, cost, options),
        "headline": [],
        "notes": [warning for reader in readers for warning in reader.warnings],
    }


TITLE = "What a log says of other policies"
_HEADS = ("workload", "policy", "requests", "revealed", "emitted per step", "tokens per second")
_SENTENCE = (
    "Through the logged texts and at the logged load: `logged` is what ran, all others what their "
    "own path is expected to give. *Revealed* is the share of its steps that text or log shows."
)


class LoggedReport(EvaluationReport):
    """A report's document on logged traces; it has one table."""

    def contents(self) -> Contents:
        """The table that terminal and page show."""
        return Contents(
            title=TITLE,
            sections=[Section("Estimates", [Part(table(self.document))], brief=True)],
            notes=[foreign(note) for note in self.notes],
            command=plain(self.document.get("command") or ""),
        )

    def figures(self) -> list[Figure]:
        """No figures: a few rows say it all."""
        return []


def table(document: Mapping[str, Any]) -> Table:
    """What ran, and what each policy's own path would have given."""
    title: Text = [f"{TITLE}, costs of ", code(document["cost"])]
    return simple_table(title, [*_HEADS, "over logged", "95%"], _cells(document), 2, _SENTENCE)


def _cells(document: Mapping[str, Any]) -> Iterator[list[Text]]:
    for row in document["rows"]:
        said: list[Text] = [NULL] * 4
        (figures,) = row["estimates"].values()
        if figures is not None:
            said = [
                decimal(figures["emitted_per_step"], 2),
                f"{figures['tokens_per_s']:,.0f}",
                signed_percent(figures["lift_over_logged"]),
                signed_range(figures["lift_over_logged_ci95"]),
            ]
        names: list[Text] = [foreign(row["workload"]), code(row["policy"]), f"{row['requests']:,}"]
        yield [*names, percent(row.get("revealed_share"), 1), *said]
