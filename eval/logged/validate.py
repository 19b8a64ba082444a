"""Hold the estimators for logged traces against the truth: bias, error and coverage.

    python eval/logged/validate.py -o eval/reports/logged    # 500 repetitions, some minutes

Dense traces know what every draft would have come to. Each repetition draws requests of them with
replacement, serves them by a known policy that explores as a server does (`explore`), and keeps
only what a log would: the tokens that were verified and the probabilities of the plans. From that,
`adaspec eval` on logs (its own functions) estimates what other policies achieve. The truth is that
of all requests: of the logged decisions by the exact probability that the logging policy comes to
each position, of a policy's own path by walking it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.errors import EvaluationError
from adaspec.evaluate.logged.estimators import ESTIMATORS, PATH
from adaspec.evaluate.logged.evaluation import judge
from adaspec.evaluate.logged.outcomes import Outcomes, Plans, outcomes_of, plans_of_rule
from adaspec.evaluate.options import Options
from adaspec.jit import compiled
from adaspec.policy.spec import parse_policy
from adaspec.replay.logged import MAX_REACH, MAX_WEIGHT, Log
from adaspec.replay.recording import Recording, build_recording
from adaspec.trace.reader import open_traces

COST = H100_LLAMA_3_1_8B.without_deciding()

CHECKOUT = Path(__file__).resolve().parents[2]
TRACES = CHECKOUT / "eval" / "traces" / "reference-pair"
DRAWN = 40
"""Requests of each workload in a repetition."""
RUNNING = 8
CAP = 16
"""The longest draft of the logging policies."""
EXPLORED_NEURAL = 5
"""Neural tokens of an explored draft, as in `adaspec/vllm/exploring.py`."""
LOGGING = {
    ("hybrid:4:16:3", 0.1): ("fixed:neural:2", "hybrid:8:16:3", "hybrid-splice:4:16:2:2:5"),
    ("fixed:neural:3", 0.05): ("fixed:neural:2", "fixed:neural:4", "hybrid:4:16:3"),
    ("hybrid:4:16:3", 0.0): ("hybrid:4:16:2", "hybrid:8:16:3", "fixed:ngram:16:2"),
}
"""Logging policy and the share of its decisions that explore -> policies to judge by its log."""
SHOWN = (("true_tokens_per_s", ",.0f"), ("bias", "+.1%"), ("rmse", ".1%"), ("coverage", ".1%"))
"""A row's figures in the table, and their form."""
Ints = NDArray[np.int32]
Array = NDArray[np.float64]


def everything_of(recording: Recording) -> Log:
    """A log with a step at every position."""
    sizes = recording.columns.length - 1
    first = np.concatenate([[0], np.cumsum(sizes)])
    request = np.repeat(np.arange(len(sizes)), sizes)
    position = (np.arange(first[-1]) - first[request] + 1).astype(np.int32)
    none, unknown = np.zeros(len(position), np.int32), np.full(len(position), np.nan)
    running = np.full(len(position), RUNNING, np.int32)
    return Log(
        recording=recording,
        first=first,
        position=position,
        neural_len=none,
        drafted=none,
        accepted=none,
        weight=unknown,
        propensity=unknown,
        reach=np.zeros((len(position), MAX_REACH)),
        running=running,
    )


def plans_for(log: Log, spec: str, cap: int) -> Plans:
    """A static rule's plans."""
    return plans_of_rule(log, parse_policy(spec).rule, cap)


@compiled
def serve(
    first: NDArray[np.int64],
    drawn: NDArray[np.int64],
    left: Ints,
    neural_right: Ints,
    available: Ints,
    right: Ints,
    own: Plans,
    epsilon: float,
    explored_neural: int,
    cap: int,
    seed: int,
    out: Ints,
    propensity: Array,
    reach: Array,
    ends: NDArray[np.int64],
) -> int:
    """Serve the drawn requests: position, neural, drafted and accepted of every step."""
    np.random.seed(seed)
    count = 0
    for d in range(drawn.shape[0]):
        r, p = drawn[d], 0
        size = first[r + 1] - first[r]
        while p < size:
            row = first[r] + p
            base = (own.neural[row], own.copied[row] + own.spliced[row])
            # none, neural, copy; the same plan may come by chance and by rule.
            plans = [(np.int32(0), np.int32(0)), (np.int32(explored_neural), np.int32(0))]
            if available[row] > 0:
                plans.append((np.int32(0), np.int32(min(available[row], cap))))
            neural, copied = base
            if np.random.random() < epsilon:
                neural, copied = plans[np.random.randint(len(plans))]
            share = epsilon / len(plans)
            propensity[count] = 0.0
            if (neural, copied) == base:
                propensity[count] += 1 - epsilon
            reach[count] = 0.0
            reach[count, : base[0]] += 1 - epsilon
            for plan in plans:
                propensity[count] += share * (plan == (neural, copied))
                reach[count, : plan[0]] += share
            accepted = min(neural_right[row], neural) if neural > 0 else min(right[row], copied)
            if neural > 0 and accepted == neural and copied > 0:
                accepted += own.spliced_right[row]
            out[count, 0], out[count, 1] = p + 1, neural
            out[count, 2], out[count, 3] = neural + copied, accepted
            p += min(accepted + 1, left[row])
            count += 1
        ends[d + 1] = count
    return count


@compiled
def visits_of(
    first: NDArray[np.int64],
    left: Ints,
    neural_right: Ints,
    available: Ints,
    right: Ints,
    own: Plans,
    epsilon: float,
    explored_neural: int,
    cap: int,
) -> Array:
    """The probability of coming to each position."""
    visits = np.zeros(left.shape[0] + 1)
    for r in range(first.shape[0] - 1):
        visits[first[r]] = 1.0
        for row in range(first[r], first[r + 1]):
            base = own.right[row]
            if own.neural[row] > 0:
                base = min(neural_right[row], own.neural[row])
                if base == own.neural[row]:
                    base += own.spliced_right[row]
            came = [np.int64(0), np.int64(min(neural_right[row], explored_neural))]
            if available[row] > 0:
                came.append(np.int64(min(right[row], available[row], cap)))
            step = min(base + 1, left[row])
            if row + step < first[r + 1]:
                visits[row + step] += visits[row] * (1 - epsilon)
            for accepted in came:
                step = min(accepted + 1, left[row])
                if row + step < first[r + 1]:
                    visits[row + step] += visits[row] * epsilon / len(came)
    return visits[:-1]


class World:
    """The dense traces, and what is true of all of their requests."""

    def __init__(self, traces: Path) -> None:
        requests = [each for reader in open_traces(traces) for each in reader.requests()]
        self.recording = build_recording([r for r in requests if len(r.output_tokens) >= 16], 8)
        self.log = everything_of(self.recording)
        columns, at = self.recording.columns, self.log.at
        self.facts = (
            self.log.left,
            columns.neural[at].astype(np.int32),
            columns.available[at].astype(np.int32),
            columns.run[at].astype(np.int32),
        )
        sizes = np.bincount(self.recording.workload)
        self.weight = (DRAWN / sizes)[self.recording.workload]
        """How often a repetition draws each request, on average."""

    def logged(self, spec: str, epsilon: float, seed: int) -> Log:
        """A repetition: the log of some requests."""
        rng = np.random.default_rng([seed, 0x10C])
        members = [self.recording.members(name) for name in self.recording.workloads]
        drawn = np.concatenate([rng.choice(each, DRAWN) for each in members]).astype(np.int64)
        own, room = (
            plans_for(self.log, spec, CAP),
            int((self.recording.columns.length[drawn]).sum()),
        )
        out, propensity = np.zeros((room, 4), np.int32), np.zeros(room)
        reach, ends = np.zeros((room, MAX_REACH)), np.zeros(len(drawn) + 1, np.int64)
        settings = (epsilon, EXPLORED_NEURAL, CAP, seed)
        count = serve(
            self.log.first, drawn, *self.facts, own, *settings, out, propensity, reach, ends
        )
        position, neural, drafted, accepted = (column.copy() for column in out[:count].T)
        return Log(
            recording=subset(self.recording, drawn),
            first=ends,
            position=position,
            neural_len=neural,
            drafted=drafted,
            accepted=accepted,
            weight=np.minimum(1 / propensity[:count], MAX_WEIGHT),
            propensity=propensity[:count],
            reach=reach[:count],
            running=np.full(count, RUNNING, np.int32),
        )

    def true_decisions(self, spec: str, epsilon: float, target: str) -> float:
        """Tokens per second of a target at the decisions of a logging policy."""
        own = plans_for(self.log, spec, CAP)
        visits = (
            visits_of(self.log.first, *self.facts, own, epsilon, EXPLORED_NEURAL, CAP)
            * self.weight[self.log.request]
        )
        outcomes = self._outcomes(target)
        return float((visits * self._emitted(outcomes)).sum() / (visits * outcomes.seconds).sum())

    def true_path(self, target: str) -> float:
        """Tokens per second of a target on its own path."""
        plans, outcomes = plans_for(self.log, target, 48), self._outcomes(target)
        visits = visits_of(self.log.first, *self.facts, plans, 0.0, 1, 48)
        visits = visits * self.weight[self.log.request]
        return float((visits * self._emitted(outcomes)).sum() / (visits * outcomes.seconds).sum())

    def _outcomes(self, target: str) -> Outcomes:
        return outcomes_of(self.log, plans_for(self.log, target, 48), COST)

    def _emitted(self, outcomes: Outcomes) -> Array:
        counts = np.arange(1, outcomes.gain.shape[1] + 1)
        came = self.facts[1][:, None] >= counts
        emitted: Array = outcomes.base + (outcomes.gain * came).sum(axis=1)
        return emitted


def subset(recording: Recording, drawn: NDArray[np.int64]) -> Recording:
    """The drawn requests, each as often as it was drawn, without what only replays read."""
    columns = recording.columns
    length, offset = columns.length[drawn], columns.offset[drawn]
    places = np.concatenate([np.arange(o, o + n) for o, n in zip(offset, length, strict=True)])
    names = ("neural", "match", "available", "run")
    return replace(
        recording,
        requests=tuple(recording.requests[r] for r in drawn),
        workload=recording.workload[drawn],
        columns=columns._replace(
            offset=np.concatenate([[0], np.cumsum(length)]),
            prompt=columns.prompt[drawn],
            length=length,
            **{name: getattr(columns, name)[places] for name in names},
        ),
    )


def repetition(world: World, seed: int) -> dict[tuple[str, float, str], dict[str, Any] | str]:
    """The estimates of one repetition for every logging policy and target, or its refusal."""
    found: dict[tuple[str, float, str], dict[str, Any] | str] = {}
    for (spec, epsilon), targets in LOGGING.items():
        log = world.logged(spec, epsilon, seed)
        for target in targets:
            try:
                options = Options(seed=seed)
                rows, _ = judge(log, [parse_policy(target)], COST, options)
            except EvaluationError as error:
                found[spec, epsilon, target] = str(error)
                continue
            found[spec, epsilon, target] = next(
                row for row in rows if (row["workload"], row["policy"]) == ("all", target)
            )
    return found


def rows_of(world: World, repetitions: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """A row per logging policy, target and estimator."""
    rows = []
    for (spec, epsilon), targets in LOGGING.items():
        for target in targets:
            found = [each[spec, epsilon, target] for each in repetitions]
            judged = [each for each in found if not isinstance(each, str)]
            if not judged:
                refusal = {"estimator": "refused", "refused": len(found), "why": found[0]}
                rows.append({"logging": spec, "explore": epsilon, "target": target, **refusal})
            truth = defaultdict(lambda: world.true_decisions(spec, epsilon, target))  # noqa: B023
            truth[PATH] = world.true_path(target)
            for name in ESTIMATORS:
                figures = [row["estimates"][name] for row in judged if row["estimates"][name]]
                if not figures:  # not given by a log without choice, or refused
                    continue
                values = np.array([each["tokens_per_s"] for each in figures])
                low, high = np.array([each["tokens_per_s_ci95"] for each in figures]).T
                true = truth[name]
                rows.append(
                    {
                        "logging": spec,
                        "explore": epsilon,
                        "target": target,
                        "estimator": name,
                        "repetitions": len(figures),
                        "refused": len(found) - len(judged),
                        "effective_share": float(
                            np.mean(
                                [(r["effective_decisions"] or 0) / r["decisions"] for r in judged]
                            )
                        ),
                        "revealed_share": float(np.mean([r["revealed_share"] for r in judged])),
                        "unsupported_share": float(
                            np.mean([r["unsupported_share"] for r in judged])
                        ),
                        "true_tokens_per_s": true,
                        "bias": float(values.mean() / true - 1),
                        "rmse": float(np.sqrt(np.mean((values / true - 1) ** 2))),
                        "coverage": float(((low <= true) & (true <= high)).mean()),
                    }
                )
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows in Markdown."""
    heads = ["logged by", "explores", "judged", "estimator", "true tokens/s", "bias"]
    heads += ["RMSE", "coverage of 95%"]
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join("--" for _ in heads) + " |"]
    for row in rows:
        cells = [f"`{row['logging']}`", f"{row['explore']:.0%}", f"`{row['target']}`"]
        cells.append(row["estimator"])
        cells += [format(row[name], form) if name in row else "" for name, form in SHOWN]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def write(document: dict[str, Any], folder: Path) -> None:
    """Write report.json and report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    text = [
        "# Estimates from logs against the truth",
        f"{document['repetitions']} repetitions, each of {document['requests']} requests drawn "
        f"with replacement from the dense traces, {document['running']} at once, costs of "
        f"{document['cost']}, intervals of {document['resamples']} resamples. Errors are of "
        "tokens per second, relative to the truth: for `path` that of the policy's own path, for "
        "all others that of the policy at the logged decisions.",
        "\n".join(table(document["rows"])),
        f"Made by: `{document['command']}`",
    ]
    (folder / "report.md").write_text("\n\n".join(text) + "\n", "utf-8")


def main() -> None:
    """Run the repetitions and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    began_s, world = time.monotonic(), World(given.traces)
    with threadpool_limits(1):  # matrices are small: threads would only wait for each other
        run = Parallel(n_jobs=given.jobs)
        repetitions = run(delayed(repetition)(world, seed) for seed in range(given.repetitions))
    rows = rows_of(world, repetitions)
    document = {
        "schema": 1,
        "repetitions": given.repetitions,
        "requests": DRAWN * len(world.recording.workloads),
        "running": RUNNING,
        "cost": COST.name,
        "resamples": Options().resamples,
        "command": shlex.join(["python", *sys.argv]),
        "rows": rows,
    }
    write(document, given.out)
    print("\n".join(table(rows)))
    print(f"{time.monotonic() - began_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
