"""The card of a policy: what a person needs to judge it, without dates that would change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from adaspec.evaluate.options import NONE, Options
from adaspec.evaluate.plain_table import Table
from adaspec.evaluate.selection import Selection
from adaspec.evaluate.tables import (
    OPPONENT,
    Report,
    calibration,
    headline,
    how_to_read,
    lifts_alone,
)
from adaspec.policy.manifest import PolicyManifest
from adaspec.train.corpus import HELD_OUT, Corpus
from adaspec.train.token_tables import MIN_REQUESTS

MAX_NOISE = 0.02
"""Lifts below this, measured on a few hundred requests, are noise."""
MINE = "this policy"
"""What the card calls the policy, whatever its folder's name."""

_EVIDENCE = (
    "It never sees drafted tokens or confidences: the traces held none.",
    "It reads drafted tokens as they come; the traces held no confidences.",
    "It reads drafted tokens and the drafter's confidences as they come.",
)


def card_of(
    manifest: PolicyManifest,
    corpus: Corpus,
    options: Options,
    entries: int,
    reports: Mapping[str, Mapping[str, Any]],
) -> str:
    """The text of `CARD.md`; the token tables have so many entries.

    `reports` are those on requests that a model never saw, by title, each with a calibration.
    """
    made_for = "any model" if corpus.general else manifest.target or "an unnamed target"
    parts = [
        f"# A policy for {made_for}",
        *_summary(manifest, corpus),
        "## Data",
        *_data(corpus),
        "## Trained with",
        *_settings(manifest, options),
    ]
    parts += ["## On requests it never saw", how_to_read(next(iter(reports.values())))]
    for title, document in reports.items():
        parts += _results(title, document)
    parts.append("## Calibration")
    for title, document in reports.items():
        for table in calibration(document["calibration"], title):
            parts.append(table.markdown(3))
    parts += ["## What the files hold", _files(entries), "## Limits", _limits(manifest, corpus)]
    return "\n\n".join(parts) + "\n"


def _summary(manifest: PolicyManifest, corpus: Corpus) -> Iterator[str]:
    if corpus.trained.synthetic:
        yield (
            "**Trained and judged on synthetic traces: the figures below show how adaspec reports, "
            "not what it gains.**"
        )
    if "neural" in manifest.sources:
        yield (
            f"Chooses between n-gram drafts, drafts of `{manifest.drafter or 'a neural drafter'}` "
            f"(up to {manifest.neural_cap}), both spliced, and none. "
            f"{_EVIDENCE[len(manifest.evidence)]}"
        )
    else:
        yield "**n-gram only:** the traces held no neural drafts, so it never asks for one."
    yield (
        "It maximises tokens per second of the whole batch: a single request may be served slower "
        "than another policy would."
    )


def _data(corpus: Corpus) -> Iterator[str]:
    trained, held_out = corpus.trained, corpus.held_out
    if corpus.general:
        yield "The recordings may be of several targets and drafters."
    else:
        yield (
            f"Target: {trained.target or 'not said'}. Tokenizer: {corpus.tokenizer or 'not said'}. "
            f"Drafter: {trained.drafter or 'none'}."
        )
    rows = [
        [
            workload,
            f"{count:,}",
            f"{_tokens(trained, workload):,}",
            f"{held_out.counts.get(workload, 0):,}",
            f"{_tokens(held_out, workload):,}",
        ]
        for workload, count in trained.counts.items()
    ]
    heads = ["workload", "trained on", "output tokens", "kept back", "output tokens"]
    yield Table("", heads, rows).markdown()
    reasons: Counter[str] = sum(map(Counter, trained.left_out.values()), Counter())
    if reasons:
        listing = "; ".join(f"{count:,} {why}" for why, count in sorted(reasons.items()))
        yield f"Neither replayed nor judged: {listing}."
    if trained.unpaired and not corpus.general:
        yield (
            f"The text of {len(trained.unpaired):,} unpaired requests went into the token "
            "tables: their drafts were recorded on another output, or not at all."
        )
    yield (
        f"A hash of each request's tokens decides whether it is kept back (about {HELD_OUT:.0%}); "
        "the manifest lists the hashes of those trained on."
    )


def _tokens(selection: Selection, workload: str) -> int:
    return sum(len(r.output_tokens) for r in selection.requests if r.workload == workload)


def _settings(manifest: PolicyManifest, options: Options) -> Iterator[str]:
    yield (
        f"adaspec {manifest.adaspec_version}, cost model `{manifest.cost}`, seed {manifest.seed}, "
        f"concurrency {', '.join(map(str, options.concurrency))}, drafts of at most {manifest.cap} "
        "tokens."
    )
    forwards = ", ".join(f"{count} at {load}" for load, count in manifest.forwards.items())
    yield f"Forwards of the drafter at first, by concurrency: {forwards or '1 at each'}."


def _results(title: str, document: Mapping[str, Any]) -> Iterator[str]:
    """What the policy of a report gains on the mix and on each workload."""
    (policy,) = document["policies"]
    names = {policy: MINE, NONE: NONE, OPPONENT: OPPONENT}
    shown = {
        key: [
            row | {"policy": names[row["policy"]]}
            for row in document[key]
            if row["policy"] in names
        ]
        for key in ("rows", "headline")
    }
    report = Report({**document, **shown, "policies": [MINE]})
    workload = report.workloads[0]
    yield f"### {title}"
    resamples = document["resamples"]
    drawn = f"intervals from {resamples} resamples" if resamples else "no intervals (no resamples)"
    yield f"Orders: {document['orders']}; {drawn}."
    yield headline(report, workload, MINE).markdown(4)
    if len(report.workloads) > 2:
        yield lifts_alone(report, MINE).markdown(4)


def _files(entries: int) -> str:
    return (
        "`network.npz`: the networks that predict, and survival curves. `model.txt`: the decision "
        "trees that the networks were fitted to, in LightGBM's own words. `tables.npz`: "
        f"{entries:,} entries of token tables: how often drafts were accepted after one, two or "
        "three tokens. Their keys are salted hashes of token ids of the training text; entries "
        f"that fewer than {MIN_REQUESTS} training requests share are dropped. The salt lies beside "
        "them: whoever guesses a short run of tokens can look up whether it was common."
    )


def _limits(manifest: PolicyManifest, corpus: Corpus) -> str:
    lines = [
        f"This very model was judged on {sum(corpus.held_out.counts.values()):,} requests: a "
        f"lift below {MAX_NOISE:.0%} on 30% of some hundred requests cannot be told from "
        "noise. The intervals say more than the figures."
    ]
    if "cross_fitted" not in manifest.metrics:
        lines.append(
            "No cross-fitted figure: `adaspec train --crossfit 5 -o REPORT` makes one over all "
            "requests, and `--crossfit-report REPORT` puts it here."
        )
    lines += [
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
