"""What is shown of a report: its settings, speedups, lifts, the settings that won, calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from adaspec.errors import EvaluationError
from adaspec.evaluate.options import ALL, MIN_GAP, REPORT_SCHEMA
from adaspec.evaluate.plain_table import NULL, Table, decimal, lift, percent, times
from adaspec.records import json_types

OPPONENT = "static:best"
MIX = "all workloads, mixed"
SEEN = "†"
"""The mark of a policy that was trained on requests of this evaluation."""
BASELINES = ("none", "vllm:best", "trtllm:K", "online:K", OPPONENT, "static:by-load")
"""The rows that reports have besides policies and bounds, in the order of the tables."""
LATENCIES = {
    "ttft_s": "To a request's first token (TTFT)",
    "tpot_s": "For each token behind it (TPOT)",
    "itl_s": "Between two deliveries (ITL)",
    "e2e_s": "To a request's end",
}
OPPONENTS = (OPPONENT, "vllm:best", "suffix")
"""Over whom policies are shown to lead, most important first."""
_SOURCES = {"ngram": "n-gram", "neural": "neural"}

Entry = Mapping[str, Any]
"""A policy's row in a cell, together with its headline there if it has one; keys as in the JSON."""


class Figures:
    """A report's figures by workload, load and policy."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        if document.get("schema") != REPORT_SCHEMA:
            found = f"schema {document.get('schema')!r} is not {REPORT_SCHEMA}"
            raise EvaluationError(f"report: {found}: run 'adaspec eval' again")
        self.document = document
        self.entries: dict[tuple[str, int, str], dict[str, Any]] = {}
        """By workload, load and policy; what was not computed or is not finite is None."""
        for entry in json_types([*document["rows"], *document.get("headline", ())]):
            known = {k: None if v == [None, None] else v for k, v in entry.items()}
            cell = (entry["workload"], entry["concurrency"], entry["policy"])
            self.entries[cell] = self.entries.get(cell, {}) | known
        names = dict.fromkeys(workload for workload, _, _ in self.entries)
        self.workloads = tuple(sorted(names, key=lambda name: name != ALL))
        """The workloads, with the mix first if it was run."""
        self.loads = tuple(sorted({load for _, load, _ in self.entries}))
        present = dict.fromkeys(policy for _, _, policy in self.entries)
        policies: tuple[str, ...] = tuple(document.get("policies", ()))
        self.named = tuple(name for name in policies if name in present)
        """The policies that `--policy` named and that have rows."""
        self.judged = policies if document.get("headline") else ()
        """The policies that have headlines."""
        self.baselines = tuple(name for name in BASELINES if name in present.keys() - {*policies})
        oracles = [name for name in present if name.startswith("oracle:") and name not in policies]
        self.shown = (*self.baselines, *self.named, *oracles)
        """All policies that have rows, in the order of the tables."""
        self.seen = {p for (_, _, p), e in self.entries.items() if _detail(e, "seen_in_training")}
        """The policies with a row of requests that they were trained on."""

    def across(self, workload: str, policy: str) -> list[Entry]:
        """The policy's entry at each load, empty where there is none."""
        return [self.entries.get((workload, load, policy), {}) for load in self.loads]

    def name(self, policy: str) -> str:
        """A policy's name, marked where it has seen requests of this evaluation."""
        return f"{policy} {SEEN}" if policy in self.seen else policy

    def place(self, workload: str) -> str:
        """A workload's name in titles; the mix of one workload is that workload."""
        if workload != ALL:
            return workload
        alone = [name for name in self.workloads if name != ALL]
        return alone[0] if len(alone) == 1 else MIX


def how_to_read(document: Mapping[str, Any]) -> str:
    """What the figures of a report mean."""
    interval = (
        "Behind ± stands half of the 95% interval: a lift smaller than that cannot be told from "
        "nothing. "
        if document.get("resamples", 0) > 1
        else "No intervals were made (`--resamples`), so a small lift may be nothing. "
    )
    return (
        "Speedup is tokens per second over `none` (no speculation) on the same requests in the "
        "same order, with so many requests running at once. A lift is a speedup over an "
        "opponent's, minus 1; where requests have a goal (`--slo-..`), it is of goodput, requests "
        "per second that were served within it. `static:best` is the opponent that counts: the "
        "best of all static settings on this engine, picked in hindsight on these very requests at "
        "that load. "
        f"{interval}Gap closed is how far a policy gets from `vllm:best` (the best that vLLM "
        "offers; `online:K`, which may be that, is of an unreleased branch) to "
        "`oracle:plan-splice` (perfect foresight): 0% is the first, 100% the second; "
        f"{NULL} where that gap is under {100 * MIN_GAP:g}% of `none`. A rule with splices may "
        "pass an oracle without them."
    )


def settings(report: Figures) -> Table:
    """What was evaluated and how; settings that the report lacks are left out."""
    document, traces = report.document, report.document.get("traces", {})
    goals = [
        f"{key.removesuffix('_ms').replace('_', ' ')} {document[key]:g} ms"
        for key in ("slo_ttft_ms", "slo_tpot_ms", "max_step_ms")
        if document.get(key) is not None
    ]
    arrivals = document.get("arrivals")
    run = [
        "closed loop" if arrivals is None else f"open loop, {arrivals}",
        *goals,
        *(f"{key} {document[key]}" for key in ("orders", "resamples", "seed") if key in document),
        f"draft_len up to {document['cap']}" if "cap" in document else "",
        "prefill charged" if document.get("prefill") else "prefill not counted",
        "decisions charged" if document.get("charge_decisions") else "",
        f"{document['engine']} engine" if "engine" in document else "",
    ]
    models = (f"{what} {traces[what]}" for what in ("target", "drafter") if traces.get(what))
    left_out = sum(map(Counter, traces.get("left_out", {}).values()), Counter[str]())
    lines = [
        ("traces", ", ".join(traces.get("sources", ()))),
        ("requests", _counted(traces.get("requests", {}))),
        ("left out", _counted(left_out)),
        ("models", ", ".join(models)),
        ("cost", document.get("cost")),
        ("run", ", ".join(filter(None, run))),
        *(("note", note) for note in document.get("notes", ())),
    ]
    return Table("", ("", ""), [(label, text) for label, text in lines if text], 2)


def headline(report: Figures, workload: str, policy: str) -> Table:
    """A policy's speedup, its lift over every opponent, and what it costs, by load."""
    lines: dict[str, Callable[[Entry], str]] = {"speedup": _speedup}
    lines |= {f"over {opponent}": _lift_over(opponent) for opponent in OPPONENTS}
    if workload == ALL:
        worst = f"worst workload, over its {OPPONENT}"
        lines[worst] = lambda entry: lift(entry.get("worst_workload_lift"))
    lines |= {
        "gap closed": lambda entry: percent(entry.get("gap_closed")),
        "deciding, of a step": lambda entry: percent(entry.get("decide_share_of_step"), 1),
    }
    title = f"{report.name(policy)} on {report.place(workload)}, by requests at once"
    return _by_load(report, title, {name: (workload, policy, cell) for name, cell in lines.items()})


def speedups(report: Figures, workload: str) -> Table:
    """Every policy's speedup by load, or its goodput where requests have a goal."""
    title, cell = "Speedup over none", _speedup
    if any(report.document.get(f"slo_{each}_ms") for each in ("ttft", "tpot")):
        title, cell = "Requests served in time, a second,", _score
    title += f" on {report.place(workload)}, by requests at once"
    lines = {report.name(policy): (workload, policy, cell) for policy in report.shown}
    unfair = f"{SEEN} trained on requests of this evaluation: not held out."
    return _by_load(report, title, lines, unfair if report.seen else "")


def lifts_alone(report: Figures, policy: str) -> Table:
    """A policy's lift over the static:best of each workload."""
    title = f"{report.name(policy)}: lift over the {OPPONENT} of each workload, by requests at once"
    cell = _lift_over(OPPONENT)
    lines = {name: (name, policy, cell) for name in report.workloads if name != ALL}
    return _by_load(report, title, lines)


def _speedup(entry: Entry) -> str:
    return times(entry.get("speedup"), entry.get("ci95"))


def _score(entry: Entry) -> str:
    return decimal(_detail(entry, "score"))


def _lift_over(opponent: str) -> Callable[[Entry], str]:
    key = f"lift_over_{opponent.replace(':', '_')}"
    ends = "lift_ci95" if opponent == OPPONENT else f"{key}_ci95"
    return lambda entry: lift(entry.get(key), entry.get(ends))


def latencies(report: Figures, workload: str) -> Iterator[Table]:
    """What users wait for: a table per kind of `cell_result.LATENCIES`, by policy and load."""
    for kind, what in LATENCIES.items():

        def cell(entry: Entry, kind: str = kind) -> str:
            taken_s = entry.get("latencies", {}).get(kind, {}).values()
            return " / ".join(f"{1e3 * seconds:,.1f}" for seconds in taken_s) or NULL

        title = (
            f"{what}, in ms on {report.place(workload)}: median / p95 / p99, by requests at once"
        )
        shown = (name for name in report.shown if not name.startswith("oracle:"))
        lines = {report.name(policy): (workload, policy, cell) for policy in shown}
        yield _by_load(report, title, lines)


def winners(report: Figures, workload: str) -> Table:
    """The settings that won on a workload, and at which loads."""
    rows = []
    for policy in report.baselines:
        won = [
            (_detail(entry, "spec"), load)
            for load, entry in zip(report.loads, report.across(workload, policy), strict=True)
            if _detail(entry, "spec") not in (None, policy)
        ]
        for spec, same in groupby(won, key=itemgetter(0)):
            rows.append((policy, ", ".join(str(load) for _, load in same), spec))
    title = f"The winning settings on {report.place(workload)}"
    return Table(title, ("best of", "at once", "setting"), rows, 3)


def calibration(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The calibration of a learned policy's probabilities."""
    return Table(
        "Calibration",
        ("source", "", "positions", "came true", "ECE", "AUC", "log-loss"),
        [
            [_SOURCES[row["source"]], f"S({row['survival']})", f"{row['positions']:,}"]
            + [decimal(row[key], 3) for key in ("came", "ece", "auc", "log_loss")]
            for row in rows
        ],
        2,
        "S(j) is the probability that at least j drafted tokens are accepted, as predicted before "
        "drafting at every position whose outcome is known. ECE is the expected calibration error "
        "over bins of equally many positions.",
    )


def _by_load(
    report: Figures,
    title: str,
    lines: Mapping[str, tuple[str, str, Callable[[Entry], str]]],
    sentence: str = "",
) -> Table:
    """A table of lines by name, each a cell of a policy on a workload; a load has a column."""
    rows = []
    for name, (workload, policy, cell) in lines.items():
        cells = [cell(entry) for entry in report.across(workload, policy)]
        if any(text != NULL for text in cells):
            rows.append([name, *cells])
    return Table(title, ("", *map(str, report.loads)), rows, sentence=sentence)


def _detail(entry: Entry, key: str) -> Any:
    return entry.get("detail", {}).get(key)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
