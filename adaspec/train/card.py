"""The card of a policy: what a person needs to judge it, without dates that would change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adaspec.evaluate.options import Options
from adaspec.evaluate.render import tables
from adaspec.evaluate.render.markdown import table_markdown
from adaspec.evaluate.render.table import (
    Text,
    code,
    foreign,
    milliseconds,
    percent,
    signed_percent,
    signed_range,
    simple_table,
    times,
)
from adaspec.evaluate.selection import Selection
from adaspec.policy.manifest import PolicyManifest
from adaspec.train.corpus import HELD_OUT, Corpus
from adaspec.train.token_tables import MIN_REQUESTS

MAX_NOISE = 0.02
"""Lifts below this, measured on a few hundred requests, are noise."""

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Figures by workload, then by concurrency."""

_NO_CROSS_FIT = (
    "No cross-fitted figure: `adaspec train --crossfit 5 -o REPORT` makes one over all requests, "
    "and `--crossfit-report REPORT` puts it here."
)
_EVIDENCE = (
    "It never sees drafted tokens or confidences: the traces held none.",
    "It reads drafted tokens as they come; the traces held no confidences.",
    "It reads drafted tokens and the drafter's confidences as they come.",
)
_BAR_WIDTH = 50
_LATENCIES = {"none": "none", "static_best": "`static:best`", "policy": "this policy"}


def card_of(manifest: PolicyManifest, corpus: Corpus, options: Options, entries: int) -> str:
    """The text of `CARD.md`; the token tables have so many entries."""
    metrics = manifest.metrics
    dense = corpus.logged is None
    parts = [
        f"# A policy for {manifest.target or 'an unnamed target'}",
        _summary(manifest, corpus),
        "## Data",
        _data(corpus),
        "## Trained with",
        _settings(manifest, options),
        *(["## On requests it never saw", *results(metrics, options)] if dense else []),
        "## Calibration",
        *calibrations(metrics),
        "## What the files hold",
        _files(entries),
        "## Limits",
        _limits(manifest, corpus),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(manifest: PolicyManifest, corpus: Corpus) -> str:
    sentences = []
    if corpus.trained.synthetic:
        sentences.append(
            "**Trained and judged on synthetic traces: the figures below show how adaspec reports, "
            "not what it gains.**"
        )
    if corpus.logged is not None:
        sentences.append(
            "**Trained on logged traces alone: what it would gain in speed is not known.** A log "
            "knows only what was tried; replaying other choices needs a dense trace "
            "(`adaspec record`)."
        )
    if "neural" in manifest.sources:
        evidence = _EVIDENCE[len(manifest.evidence)]
        sentences.append(
            f"Chooses between n-gram drafts, drafts of `{manifest.drafter or 'a neural drafter'}` "
            f"(up to {manifest.neural_cap}), both spliced, and none. {evidence}"
        )
    else:
        sentences.append(
            "**n-gram only:** the traces held no neural drafts, so this policy never asks for one."
        )
    sentences.append(
        "It maximises tokens per second of the whole batch: a single request may be served slower "
        "than another policy would."
    )
    return "\n\n".join(sentences)


def _data(corpus: Corpus) -> str:
    rows: list[list[Text]] = [
        [
            foreign(workload),
            f"{count:,}",
            f"{_tokens(corpus.trained, workload):,}",
            f"{corpus.held_out.counts.get(workload, 0):,}",
            f"{_tokens(corpus.held_out, workload):,}",
        ]
        for workload, count in corpus.trained.counts.items()
    ]
    heads = ["workload", "trained on", "output tokens", "kept back", "output tokens"]
    lines = [
        f"Target: {corpus.trained.target or 'not said'}. Tokenizer: "
        f"{corpus.tokenizer or 'not said'}. Drafter: {corpus.trained.drafter or 'none'}.",
        table_markdown(simple_table("", heads, rows)),
    ]
    reasons: Counter[str] = sum(map(Counter, corpus.trained.left_out.values()), Counter())
    if reasons:
        listing = "; ".join(f"{count:,} {why}" for why, count in sorted(reasons.items()))
        lines.append(f"Neither replayed nor judged: {listing}.")
    if corpus.trained.unpaired:
        lines.append(
            f"The text of {len(corpus.trained.unpaired):,} unpaired requests went into the token "
            "tables: their drafts were recorded on another output, or not at all."
        )
    lines.append(
        f"A hash of each request's tokens decides whether it is kept back (about {HELD_OUT:.0%}); "
        "the manifest lists the hashes of those trained on."
    )
    return "\n\n".join(lines)


def _tokens(selection: Selection, workload: str) -> int:
    return sum(len(r.output_tokens) for r in selection.requests if r.workload == workload)


def _settings(manifest: PolicyManifest, options: Options) -> str:
    loads = ", ".join(map(str, options.concurrency))
    forwards = ", ".join(f"{count} at {load}" for load, count in manifest.forwards.items())
    rules: list[list[Text]] = [
        [str(load), code(spec)] for load, spec in manifest.static_tuned.items()
    ]
    tuned = table_markdown(simple_table("", ["concurrency", "`static:tuned`"], rules, 2))
    return (
        f"adaspec {manifest.adaspec_version}, cost model `{manifest.cost}`, seed {manifest.seed}, "
        f"concurrency {loads}, drafts of at most {manifest.cap} tokens."
        + f"\n\nForwards of the drafter by concurrency: {forwards or 'not tuned'}."
        + f"\n\nThe best static rule on the same training requests:\n\n{tuned}" * bool(rules)
    )


def _files(entries: int) -> str:
    return (
        "`networks.npz`: the networks that predict, and survival curves. `model.txt`: the decision "
        "trees that the networks were fitted to, in LightGBM's own words. `tables.npz`: "
        f"{entries:,} entries of token tables: how often drafts were accepted after one, two or "
        "three tokens. Their keys are salted hashes of token ids of the training text; entries "
        "that fewer than "
        f"{MIN_REQUESTS} training requests share are dropped. The salt lies beside them: "
        "whoever guesses a short run of tokens can look up whether it was common."
    )


def _limits(manifest: PolicyManifest, corpus: Corpus) -> str:
    count = sum(corpus.held_out.counts.values())
    judged = [
        f"This very model was judged on {count:,} requests: a lift below {MAX_NOISE:.0%} on 30% of "
        "some hundred requests cannot be told from noise. The intervals say more than the figures.",
        *([] if "cross_fitted" in manifest.metrics else [_NO_CROSS_FIT]),
    ]
    if corpus.logged is not None:
        judged = [
            "It is right where the logging policy chose its lengths by what the features say. "
            "Lengths chosen by confidences that were not logged bias survival upwards.",
            "Where the logging policy never drafted neurally, the model extrapolates.",
        ]
    lines = [
        *judged,
        "Step times come from a cost model: measure on your engine before you believe a percent.",
        "A policy knows the traffic it was trained on; on other traffic it falls back to what its "
        "features say, and recalibrates as it runs.",
    ]
    if not manifest.evidence and "neural" in manifest.sources:
        lines.append(
            "Without drafted tokens in the traces, what a look-up finds behind a wrong draft is an "
            "estimate."
        )
    return "\n".join(f"- {line}" for line in lines)


def results(metrics: Mapping[str, Any], options: Options) -> Iterator[str]:
    """Results on requests that the policy never saw, the cross-fitted ones first."""
    crossed = metrics.get("cross_fitted")
    yield (
        "Closed loop, paired 95% intervals. `static:best` is the best of all static rules in "
        "hindsight on these very requests (for a workload, on it alone); `static:tuned` is what "
        "won on the training requests; gap closed is towards perfect foresight "
        "(`oracle:plan-splice`)."
    )
    if crossed:
        yield lifts(
            f"Cross-fitted, all {sum(crossed['requests'].values()):,} requests",
            f"The requests were dealt into {crossed['folds']} folds, and each fold was decided by "
            "a model trained as this one on the other folds. "
            f"{_orders(crossed['orders'], crossed['resamples'])}",
            crossed["cells"],
        )
    yield lifts(
        f"This very model, on the {sum(metrics['held_out_requests'].values()):,} kept back",
        _orders(options.orders, options.resamples),
        metrics["held_out"],
    )
    yield latencies((crossed["cells"] if crossed else metrics["held_out"])["all"])


def lifts(title: str, sentence: str, cells: Cells) -> str:
    """A table of lifts with a line per workload and concurrency."""
    heads = ["workload", "concurrency", "speedup over none", "lift over `static:best`"]
    heads += ["over `static:tuned`", "over `static:one`", "over `adaptive:best`"]
    rows: list[list[Text]] = [
        [
            foreign(workload),
            concurrency,
            times(cell["speedup"]),
            _lift(cell["lift_over_static_best"], cell["lift_ci95"]),
            _lift(cell["lift_over_static_tuned"], cell["lift_over_static_tuned_ci95"]),
            signed_percent(cell["lift_over_static_one"]),
            signed_percent(cell["lift_over_adaptive_best"]),
            signed_percent(cell["lift_over_fixed_best"]),
            percent(cell["gap_closed"]),
        ]
        for workload, by_load in cells.items()
        for concurrency, cell in by_load.items()
    ]
    heads += ["over `fixed:best`", "gap closed"]
    return table_markdown(simple_table(title, heads, rows, sentence=sentence), 3)


def latencies(by_load: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of latencies, with a line per concurrency: none, the best static rule, the policy."""
    rows = [
        [
            concurrency,
            *(
                f"{milliseconds(latency['median'])} / {milliseconds(latency['p95'])}"
                for latency in (cell["latency_s"][name] for name in _LATENCIES)
            ),
        ]
        for concurrency, cell in by_load.items()
    ]
    sentence = (
        "The policy maximises tokens per second of the whole batch, so one request may wait for "
        "others' drafts to be verified. Milliseconds per output token, median / 95th percentile "
        "over requests, all workloads mixed:"
    )
    heads = ["concurrency", *_LATENCIES.values()]
    return table_markdown(simple_table("What a single request pays", heads, rows, 0, sentence))


def calibrations(metrics: Mapping[str, Any]) -> Iterator[str]:
    """The calibration tables and, per source, a bar chart in text."""
    crossed = metrics.get("cross_fitted")
    judged = {"Cross-fitted": crossed["calibration"]} if crossed else {}
    judged["This very model on the requests kept back"] = metrics["calibration"]
    for index, (title, calibration) in enumerate(judged.items()):
        for table in tables.calibration(calibration, title):
            yield table_markdown(replace(table, sentence="") if index else table, 3)
    for source, depths in next(iter(judged.values()))["sources"].items():
        yield (
            f"S(1) of {tables.SOURCES[source]}{', cross-fitted' if crossed else ''}: a bar "
            "as long as the share that came true, `|` where it was predicted to end."
        )
        yield f"```\n{_bars(depths[0]['curve'])}\n```"


def _bars(curve: Sequence[Sequence[float]]) -> str:
    lines = []
    for predicted, observed, _ in curve:
        bar = list(("=" * round(_BAR_WIDTH * observed)).ljust(_BAR_WIDTH + 1))
        bar[round(_BAR_WIDTH * min(max(predicted, 0.0), 1.0))] = "|"
        lines.append(
            f"predicted {predicted:.2f}  came true {observed:.2f}  {''.join(bar).rstrip()}"
        )
    return "\n".join(lines)


def _orders(orders: int, resamples: int) -> str:
    plural = "" if orders == 1 else "s"
    drawn = f"intervals from {resamples} resamples" if resamples else "no intervals (no resamples)"
    return f"{orders} order{plural}, {drawn}."


def _lift(value: float | None, interval: tuple[float, float] | None) -> str:
    return f"{signed_percent(value)} {signed_range(interval)}".rstrip()
