"""The card of a policy: what a person needs to judge it, without dates that would change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from adaspec.evaluate import tables
from adaspec.evaluate.plain_table import Table
from adaspec.policy.manifest import PolicyManifest
from adaspec.train.corpus import HELD_OUT, Corpus
from adaspec.train.token_tables import MIN_REQUESTS

MINE = "this policy"

_EVIDENCE = (
    "It never sees drafted tokens or confidences: the traces held none.",
    "It reads drafted tokens as they come; the traces held no confidences.",
    "It reads drafted tokens and the drafter's confidences as they come.",
)
_FILES = (
    "`network.npz`: the networks that predict, and survival curves. `model.txt`: the decision "
    "trees that the networks were fitted to, in LightGBM's own words. `tables.npz`: {entries:,} "
    "entries of token tables: how often drafts were accepted after one, two or three tokens. Their "
    "keys are salted hashes of token ids of the training text; entries that fewer than "
    f"{MIN_REQUESTS} training requests share are dropped. The salt lies beside them: whoever "
    "guesses a short run of tokens can look up whether it was common."
)
_LIMITS = (
    "- Step times come from a cost model: measure on your engine before you believe a percent.\n"
    "- A policy knows the traffic it was trained on. On other traffic it goes by what its "
    "features say, and corrects what it expects of each drafter as it runs."
)


def card_of(
    manifest: PolicyManifest, corpus: Corpus, report: Mapping[str, Any], entries: int
) -> str:
    """The text of `CARD.md`; the token tables have so many entries."""
    made_for = "any model" if corpus.general else manifest.target or "an unnamed target"
    parts = [
        f"# A policy for {made_for}",
        _drafts(manifest),
        "It maximises tokens per second of the whole batch: a single request may be served slower "
        "than another policy would.",
        "## Trained on",
        *_data(manifest, corpus),
        "## On the requests kept back",
        tables.how_to_read(report),
        *(table.markdown(3) for table in _results(report)),
        "## What the files hold",
        _FILES.format(entries=entries),
        "## Limits",
        _LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


def _drafts(manifest: PolicyManifest) -> str:
    if "neural" not in manifest.sources:
        return "**n-gram only:** the traces held no neural drafts, so it never asks for one."
    return (
        f"Chooses between n-gram drafts, drafts of `{manifest.drafter or 'a neural drafter'}` (up "
        f"to {manifest.neural_cap}), both spliced, and none. {_EVIDENCE[len(manifest.evidence)]}"
    )


def _data(manifest: PolicyManifest, corpus: Corpus) -> Iterator[str]:
    rows = []
    for workload in corpus.trained.counts:
        row = [workload]
        for side in (corpus.trained, corpus.held_out):
            of_it = [len(r.output_tokens) for r in side.requests if r.workload == workload]
            row += [f"{len(of_it):,}", f"{sum(of_it):,}"]
        rows.append(row)
    heads = ["workload", "trained on", "output tokens", "kept back", "output tokens"]
    yield Table("", heads, rows).markdown()
    reasons: Counter[str] = sum(map(Counter, corpus.trained.left_out.values()), Counter())
    if reasons:
        listing = "; ".join(f"{count:,} {why}" for why, count in sorted(reasons.items()))
        yield f"Neither replayed nor judged: {listing}."
    if (count := len(corpus.trained.unpaired)) and not corpus.general:
        yield f"The text of {count:,} unpaired requests went into the token tables."
    yield (
        f"A hash of each request's tokens decides whether it is kept back (about {HELD_OUT:.0%}). "
        "The manifest lists the hashes of those trained on, and the tokenizer. Cost model "
        f"`{manifest.cost}`, {manifest.engine} engine, seed {manifest.seed}, concurrency "
        f"{', '.join(map(str, manifest.forwards)) or 'any'}, drafts of at most {manifest.cap} "
        "tokens."
    )


def _results(document: Mapping[str, Any]) -> Iterator[Table]:
    """What the policy gains on the mix and on each workload, and how well it predicts."""
    (policy,) = document["policies"]
    mine = {
        key: [row | {"policy": MINE} for row in document[key] if row["policy"] == policy]
        for key in ("rows", "headline")
    }
    report = tables.Figures({**document, **mine, "policies": [MINE]})
    yield tables.headline(report, report.workloads[0], MINE)
    if len(report.workloads) > 2:
        yield tables.lifts_alone(report, MINE)
    yield tables.calibration(document["calibration"])
