"""How a number, an interval and a name are written, the same in tables, report.md and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adaspec.evaluate.render.results import OPPONENT, Interval, Report, Results, Winner

NULL = "–"
"""What stands where nothing was computed."""
EDGE = "▲"
"""Marks a winner that lies on the edge of its grid: a larger grid might hold a better one."""
EDGE_ADVICE = (
    "the winner lies on the edge of its grid, in the parameters named: "
    "try --policy with values beyond the edge"
)
SAME = f"= {OPPONENT}"
"""What stands instead of a lift where a named policy is the very setting that won."""
_MANY = 0.2
"""The share of a workload's requests beyond which leaving them out is worth a warning."""
SEEN = "†"
"""Marks a policy whose model had trained on requests of this evaluation."""


def plain(name: object) -> str:
    """`name` on one line, with what a terminal would obey instead of showing replaced."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(name).split()))


def times(value: float | None) -> str:
    """A speedup: `2.86x`."""
    return NULL if value is None else f"{value:.2f}x"


def signed_percent(value: float | None) -> str:
    """A lift: `+9.5%`."""
    return NULL if value is None else f"{_no_minus_zero(100 * value, 1):+.1f}%"


def percent(value: float | None, places: int = 0) -> str:
    """A share: `41%`."""
    return NULL if value is None else f"{_no_minus_zero(100 * value, places):.{places}f}%"


def signed_range(value: Interval | None) -> str:
    """A lift's interval: `[+8.1, +10.9]`, in percent; empty where there is none."""
    if value is None:
        return ""
    low, high = (_no_minus_zero(100 * end, 1) for end in value)
    return f"[{low:+.1f}, {high:+.1f}]"


def plain_range(value: Interval | None) -> str:
    """A speedup's interval: `[2.81, 2.90]`; empty where there is none."""
    return "" if value is None else f"[{value[0]:.2f}, {value[1]:.2f}]"


def decimal(value: float | None, places: int = 2) -> str:
    """A plain number."""
    return NULL if value is None else f"{_no_minus_zero(value, places):.{places}f}"


def milliseconds(value_s: float | None) -> str:
    """Seconds, written in milliseconds."""
    return NULL if value_s is None else f"{1e3 * value_s:.2f}"


def count(value: float | None) -> str:
    """A whole number with its thousands apart: `9,284`."""
    return NULL if value is None else f"{value:,.0f}"


def marked(results: Results, policy: str) -> str:
    """A policy's name, marked where its model had seen these requests."""
    return plain(policy) + (f" {SEEN}" if results.seen_in_training(policy) else "")


def at_concurrencies(concurrencies: Sequence[int]) -> str:
    """`8`, or `8, 32`."""
    return ", ".join(str(each) for each in concurrencies)


def winner(found: Winner) -> str:
    """A winning spec, flagged with the parameters that lie on their grid's edge."""
    flag = f" {EDGE}{','.join(found.edge)}" if found.edge else ""
    return plain(found.spec) + flag


def short(name: str, width: int) -> str:
    """`name` cut in its middle to `width` characters."""
    text = plain(name)
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[-(width - 1 - head) :]}"


def short_names(names: Sequence[str], width: int) -> dict[str, str]:
    """Every name cut to `width`, numbered where two became the same."""
    cut = {name: short(name, width) for name in names}
    texts = list(cut.values())
    for index, name in enumerate(names, start=1):
        if texts.count(cut[name]) > 1:
            cut[name] = f"{short(name, width - 4)} #{index}"
    return cut


def facts(report: Report) -> list[tuple[str, str]]:
    """What was evaluated and how, as (label, text) lines; only what the report says."""
    found: list[tuple[str, str]] = []
    used, left_out = requests_used(report), requests_left_out(report)
    sources = _texts(_traces(report).get("sources"))
    if sources:
        found.append(("traces", ", ".join(sources)))
    if used:
        each = ", ".join(f"{plain(name)} {n:,}" for name, n in used.items())
        found.append(("requests", f"{sum(used.values()):,} ({each})"))
    if left_out:
        reasons = "; ".join(f"{n:,} {why}" for why, n in left_out.items())
        few = rests_on_few(report)
        found.append(("left out", f"{reasons}: {few}" if few else reasons))
    found += _models(report)
    found.append(("cost", plain(_named(report.get("cost")))))
    batching = plain(report.get("protocol") or report.get("batching") or NULL)
    settings = [batching]
    for key, word in (("orders", "orders"), ("resamples", "resamples"), ("seed", "seed")):
        if report.get(key) is not None:
            settings.append(f"{word} {plain(report[key])}")
    if report.get("cap") is not None:
        settings.append(f"draft_len up to {plain(report['cap'])}")
    settings.append("prefill charged" if report.get("prefill") else "prefill not counted")
    if report.get("charge_decisions"):
        settings.append("decisions charged")
    found.append(("batching", ", ".join(settings)))
    found += [("note", note) for note in _texts(report.get("notes"))]
    wins = [
        f"{plain(workload)}/{concurrency} ({times(mine)}, {times(best)})"
        for workload, concurrency, mine, best in Results(report).adaptive_wins()
    ]
    if wins:
        found.append(("note", f"adaptive:best beats {OPPONENT} at {', '.join(wins)}"))
    return found


def requests_used(report: Report) -> dict[str, int]:
    """Requests evaluated per workload."""
    value = _traces(report).get("requests")
    return {str(k): int(v) for k, v in value.items()} if isinstance(value, Mapping) else {}


def requests_left_out(report: Report, workload: str | None = None) -> dict[str, int]:
    """Requests left out per reason, of one workload or of all together."""
    value = _traces(report).get("left_out")
    total: dict[str, int] = {}
    if not isinstance(value, Mapping):
        return total
    for name, reasons in value.items():
        if isinstance(reasons, Mapping) and workload in (None, name):
            for why, n in reasons.items():
                total[plain(why)] = total.get(plain(why), 0) + int(n)
        elif isinstance(reasons, int) and workload is None:
            total[plain(name)] = total.get(plain(name), 0) + reasons
    return {why: n for why, n in total.items() if n}


def rests_on_few(report: Report) -> str:
    """Which workloads lost over a fifth of their requests: `sharegpt rests on 47 of 230`."""
    used = requests_used(report)
    found = []
    for workload, n in used.items():
        total = n + sum(requests_left_out(report, workload).values())
        if total - n > _MANY * total:
            found.append(f"{plain(workload)} rests on {n:,} of {total:,}")
    total_out, total_used = sum(requests_left_out(report).values()), sum(used.values())
    if not found and total_out > _MANY * (total_out + total_used):
        found.append(f"all rest on {total_used:,} of {total_out + total_used:,}")
    return ", ".join(plain(each) for each in found)


def summary(results: Results, policy: str) -> str:
    """What a named policy gains on the main workload, at the ends of the loads, in a sentence."""
    workload = results.main
    assert workload is not None
    ends = list(dict.fromkeys((results.concurrencies[0], results.concurrencies[-1])))
    speeds = [(c, results.value(workload, c, policy, "speedup")) for c in ends]
    lifts = [
        (c, "the same" if results.is_winner(workload, c, policy) else signed_percent(lift))
        for c in ends
        if (lift := results.lift(workload, c, policy)) is not None
    ]
    known = [f"{times(value)} at {c}" for c, value in speeds if value is not None]
    runs = ", ".join(known).replace("x at ", "x no speculation at concurrency ", 1)
    if not runs:
        return f"{plain(policy)} has no speed to show."
    text = f"{plain(policy)} runs at {runs}"
    if lifts:
        text += "; against the best static setting in hindsight it is "
        text += ", ".join(f"{lift} at {c}" for c, lift in lifts)
    return text + "."


def batched(results: Results, title: str) -> str:
    """`title`, saying so where copies of one request advanced in lockstep."""
    return f"{title} (lockstep batching)" if results.is_lockstep else title


def _models(report: Report) -> list[tuple[str, str]]:
    traces = _traces(report)
    parts = [f"{word} {plain(traces[word])}" for word in ("target", "drafter") if traces.get(word)]
    return [("models", ", ".join(parts))] if parts else []


def _named(cost: object) -> object:
    if isinstance(cost, Mapping):
        return cost.get("name", NULL)
    return NULL if cost is None else cost


def _traces(report: Report) -> Mapping[str, Any]:
    value = report.get("traces")
    return value if isinstance(value, Mapping) else {}


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [plain(value)]
    return [plain(each) for each in value] if isinstance(value, Sequence) else []


def _no_minus_zero(value: float, places: int) -> float:
    return 0.0 if round(value, places) == 0 else value
