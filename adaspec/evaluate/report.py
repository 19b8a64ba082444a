"""A report's document, and what tables and figures ask of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from adaspec.documents import json_types
from adaspec.errors import EvaluationError
from adaspec.evaluate.options import ALL

REPORT_SCHEMA = 1
OPPONENT = "static:best"
MEMORY_ORACLES = ("combine", "plan-splice")
"""The oracles that are also shown copying from earlier answers."""
_HINDSIGHT = "the best in hindsight on these very requests at each concurrency, of "
ROWS = {
    "none": "no speculation",
    "fixed:best": _HINDSIGHT + "one drafter at one length (`fixed:ngram`, `fixed:neural`)",
    "hybrid:best": _HINDSIGHT + "the `hybrid` grid: n-gram or neural by match length, no splicing",
    "adaptive:best": _HINDSIGHT + "what adapts by itself: `budget` and `ema`",
    "vllm:best": _HINDSIGHT + "what vLLM itself offers: one drafter at one length, or `budget`",
    "static:one": "the one static setting that is best over all concurrencies (geometric mean)",
    "static:tuned": "what the grids chose at each concurrency on the policy's training requests",
    "static:fresh": "what they chose there for a sync engine, decided as in one: a yardstick that "
    "no async engine can run",
    "static:memory": _HINDSIGHT + "the same settings, copying from earlier answers as well",
    "static:best": _HINDSIGHT + "every static setting of every grid, and `none`",
    "oracle:ngram": "n-gram alone: each request proposes its whole accepted span; greedy",
    "oracle:neural": "neural alone: each request proposes its whole accepted span; greedy",
    "oracle:combine": "the longer accepted span of the two, n-gram on ties; greedy",
    "oracle:plan": "perfect foresight, each step's plans chosen by the going rate; a reference",
    "oracle:plan-splice": "the same, with n-gram tokens spliced behind neural ones; a reference",
    "oracle:dp": "the cheapest possible path, by dynamic programming; a bound, for one request",
    "oracle:dp-splice": "the same, with splices; a bound, for one request",
    **{
        f"oracle:{kind}-memory": f"`oracle:{kind}`, copying from earlier answers as well"
        for kind in MEMORY_ORACLES
    },
}
"""The rows that every report may have, baselines first, and what each is."""
LIFT = "lift_over_static_best"
_WARN_LEFT_OUT = 0.2
"""A warning appears if a larger share of a workload's requests than this was left out."""

Entry = Mapping[str, Any]
"""A policy's row in a cell, together with its headline there if it has one; keys as in the JSON."""


class Report:
    """What tables and figures ask of a report's document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        if document.get("schema") != REPORT_SCHEMA:
            raise EvaluationError(
                f"report: schema {document.get('schema')!r} is not {REPORT_SCHEMA}, the one this "
                "build reads: run 'adaspec eval' again with this build, or install a newer adaspec"
            )
        self.document = document
        self.entries: dict[tuple[str, int, str], dict[str, Any]] = {}
        """By workload, concurrency and policy; what was not computed or is not finite is None."""
        for entry in json_types([*document["rows"], *document.get("headline", ())]):
            known = {k: None if v == [None, None] else v for k, v in entry.items()}
            cell = (entry["workload"], entry["concurrency"], entry["policy"])
            self.entries[cell] = self.entries.get(cell, {}) | known
        names = dict.fromkeys(workload for workload, _, _ in self.entries)
        self.workloads = tuple(sorted(names, key=lambda name: name != ALL))
        """The workloads, with the mix first if it was run."""
        self.concurrencies = tuple(sorted({load for _, load, _ in self.entries}))
        self.policies: tuple[str, ...] = tuple(document.get("policies", ()))
        """The policies that `--policy` named, in the order given."""
        present = {policy for _, _, policy in self.entries}
        self.named = tuple(name for name in self.policies if name in present)
        self.judged = self.policies if document.get("headline") else ()
        """The policies that have headlines."""
        others = present.difference(self.policies)
        self.baselines = tuple(n for n in ROWS if n in others and not n.startswith("oracle:"))
        self.oracles = tuple(n for n in ROWS if n in others and n.startswith("oracle:"))
        """The oracles that have rows and were not named by `--policy`; `baselines` is alike."""
        self.shown = (*self.baselines, *self.named, *self.oracles)
        """All policies that have rows, in the order of the tables."""
        self.main = self.workloads[0] if self.workloads else None
        """The workload to show first: the mix, or else the first workload."""
        self.has_all = self.main == ALL
        alone = self.workloads[self.has_all :]
        self.alone = alone if len(alone) > 1 or not self.has_all else ()
        """The workloads that were run by themselves; none if there is only one beside the mix."""
        self.representative = self.main if self.has_all or len(alone) == 1 else None
        """The workload that stands for all: the mix, or the only one; None if there is neither."""
        self.seen = {
            p
            for (_, _, p), e in self.entries.items()
            if e.get("detail", {}).get("seen_in_training")
        }
        """The policies with a row of requests that they were trained on."""
        traces = document.get("traces", {})
        self.used: dict[str, int] = traces.get("requests", {})
        """Workload -> the number of requests evaluated."""
        self.left_out: dict[str, dict[str, int]] = traces.get("left_out", {})
        """Workload -> reason -> the number of requests left out."""
        self.reasons = dict(sum(map(Counter, self.left_out.values()), Counter[str]()))
        """Reason -> the number of requests left out, over all workloads."""

    def across(self, workload: str, policy: str) -> list[tuple[int, Entry]]:
        """Each concurrency with the policy's entry, which is empty if there is none."""
        return [(n, self.entries.get((workload, n, policy), {})) for n in self.concurrencies]

    def figures(self, workload: str, policy: str, key: str = "speedup") -> list[float | None]:
        """A figure at each concurrency."""
        return [entry.get(key) for _, entry in self.across(workload, policy)]

    def few_left(self) -> str:
        """The workloads that lost over a fifth of their requests: `chat rests on 47 of 230`."""
        lost = {name: sum(self.left_out.get(name, {}).values()) for name in self.used}
        return ", ".join(
            f"{name} rests on {count:,} of {count + lost[name]:,}"
            for name, count in self.used.items()
            if lost[name] > _WARN_LEFT_OUT * (count + lost[name])
        )

    def winners(self, workload: str, policy: str) -> list[tuple[str, list[str], list[int]]]:
        """The settings that won, the edges of the grid that they lie on, and at which loads."""
        won = [
            (detail["spec"], detail.get("edge") or [], load)
            for load, entry in self.across(workload, policy)
            if (detail := entry.get("detail", {})).get("spec") not in (None, policy)
        ]
        return [
            (spec, edge, [load for _, _, load in same])
            for (spec, edge), same in groupby(won, key=lambda each: each[:2])
        ]


def is_winner(entry: Entry) -> bool:
    """Whether the policy is the same setting that static:best picked."""
    return entry.get(LIFT) == 0 and entry.get("lift_ci95") in (None, [0.0, 0.0])
