"""Tables of a report's settings and requests, and of what its rows and specs mean."""

from __future__ import annotations

from adaspec.evaluate.render.report import OPPONENT, Report
from adaspec.evaluate.render.table import (
    NULL,
    Mark,
    Span,
    Table,
    Text,
    code,
    foreign,
    simple_table,
    times,
)

SEEN = "†"
"""The mark of a policy whose model was trained on requests of this evaluation."""
_WARN_LEFT_OUT = 0.2
"""A warning appears if a larger share of a workload's requests than this was left out."""
_HINDSIGHT = "the best in hindsight on these very requests at each concurrency, of "
_DEFINITIONS = {
    "none": "no speculation",
    "fixed:best": _HINDSIGHT + "one drafter at one length (`fixed:ngram`, `fixed:neural`)",
    "hybrid:best": _HINDSIGHT + "the `hybrid` grid: n-gram or neural by match length, no splicing",
    "adaptive:best": _HINDSIGHT + "what adapts by itself: `budget`, `batch-table`, `ema`",
    "static:one": "the one static setting that is best over all concurrencies (geometric mean)",
    "static:tuned": "what the grids chose at each concurrency on the policy's training requests",
    "static:best": _HINDSIGHT + "every static setting of every grid, and `none`",
    "oracle:ngram": "n-gram alone: each request proposes its whole accepted span; greedy",
    "oracle:neural": "neural alone: each request proposes its whole accepted span; greedy",
    "oracle:combine": "the longer accepted span of the two, n-gram on ties; greedy",
    "oracle:plan": "perfect foresight, each step's plans chosen by the going rate; a reference",
    "oracle:plan-splice": "the same, with n-gram tokens spliced behind neural ones; a reference",
    "oracle:dp": "the cheapest possible path, by dynamic programming; a bound, for one request",
    "oracle:dp-splice": "the same, with splices; a bound, for one request",
}
_GREEDY = (
    "The `ngram`, `neural` and `combine` oracles are greedy: each request proposes its whole "
    "accepted span and the batch pays for the longest, so in mixed batches a short fixed draft "
    "can beat them. `plan` and `plan-splice` are references. Only `dp` and `dp-splice` are "
    "bounds, for one request."
)


def settings(report: Report) -> Table:
    """What was evaluated and how; settings that the report lacks are left out."""
    document = report.document
    traces = document.get("traces", {})
    requests = ", ".join(f"{name} {count:,}" for name, count in report.used.items())
    few_left = _few_left(report)
    left_out = [f"{count:,} {reason}" for reason, count in report.left_out_by_reason().items()]
    models = [f"{what} {traces[what]}" for what in ("target", "drafter") if traces.get(what)]
    keys = [key for key in ("orders", "resamples", "seed") if document.get(key) is not None]
    batching = [
        document.get("protocol") or document.get("batching") or NULL,
        *(f"{key} {document[key]}" for key in keys),
        f"draft_len up to {document['cap']}" if document.get("cap") is not None else "",
        "prefill charged" if document.get("prefill") else "prefill not counted",
        "decisions charged" if document.get("charge_decisions") else "",
    ]
    lines = [
        ("traces", ", ".join(traces.get("sources", ()))),
        ("requests", f"{sum(report.used.values()):,} ({requests})" if requests else ""),
        ("left out", "; ".join(left_out) + (f": {few_left}" if few_left else "")),
        ("models", ", ".join(models)),
        ("cost", document.get("cost") or NULL),
        ("batching", ", ".join(filter(None, batching))),
        *(("note", note) for note in (*document.get("notes", ()), *_adaptive_wins(report))),
    ]
    warnings = {"note", "left out"} if few_left else {"note"}
    rows = [
        [Span(label, marks=(Mark.FAINT,)), foreign(text, *[Mark.WARNING][: label in warnings])]
        for label, text in lines
        if text
    ]
    return simple_table("", ["", ""], rows, 2)


def definitions(report: Report) -> Table | None:
    """One sentence for each of the report's baselines and oracles."""
    shown = [name for name in _DEFINITIONS if name in (*report.baselines, *report.oracles)]
    rows: list[list[Text]] = [[code(name), _DEFINITIONS[name]] for name in shown]
    oracles = _GREEDY if report.oracles else ""
    return simple_table("What each row is", ("row", "is"), rows, 2, oracles) if rows else None


def defaults(report: Report) -> Table | None:
    """The full spec for each spec without parameters."""
    rows = [[code(s), code(text)] for s, text in report.document.get("defaults", {}).items()]
    return simple_table("What a bare spec means", ("spec", "means"), rows, 2) if rows else None


def requests(report: Report) -> Table | None:
    """How many requests of each workload were evaluated, and why others were not."""
    reasons = list(report.left_out_by_reason())
    rows: list[list[Text]] = []
    for name, count in report.used.items():
        left_out = report.left_out.get(name, {})
        rows.append(
            [foreign(name), f"{count:,}", *(f"{left_out.get(why, 0):,}" for why in reasons)]
        )
    heads: list[Text] = ["workload", "used"]
    heads += [("left out: ", foreign(why)) for why in reasons]
    return simple_table("Requests", heads, rows) if rows else None


def footnotes(report: Report) -> list[str]:
    """The meaning of the signs in the tables."""
    lines = [f"{NULL} was not computed."]
    if any(report.seen_in_training(policy) for policy in report.policies):
        lines.append(f"{SEEN} its model trained on requests of this evaluation: not held out.")
    return lines


def _few_left(report: Report) -> str:
    """The workloads that lost over a fifth of their requests: `sharegpt rests on 47 of 230`."""
    lost = {name: sum(report.left_out.get(name, {}).values()) for name in report.used}
    return ", ".join(
        f"{name} rests on {count:,} of {count + lost[name]:,}"
        for name, count in report.used.items()
        if lost[name] > _WARN_LEFT_OUT * (count + lost[name])
    )


def _adaptive_wins(report: Report) -> list[str]:
    """A note on the cells where adaptive:best beats static:best by over 0.1%, if any."""
    wins = []
    for workload in report.workloads:
        for load in report.concurrencies:
            adaptive = report.row(workload, load, "adaptive:best").speedup
            static = report.row(workload, load, OPPONENT).speedup
            if adaptive is not None and static is not None and adaptive > 1.001 * static:
                wins.append(f"{workload}/{load} ({times(adaptive)}, {times(static)})")
    return [f"adaptive:best beats {OPPONENT} at {', '.join(wins)}"] if wins else []
