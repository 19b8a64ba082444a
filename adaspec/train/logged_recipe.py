"""From logged traces alone to a policy's folder: split, fit, judge by what is identified, write.

A logged trace cannot replay choices other than those that were made, so such a policy is not judged
by speed. Its card says how well it predicts, on requests kept back, what the log shows. Its knobs
are the defaults, and no static rule is tuned to compare it with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.errors import TrainingError
from adaspec.evaluate.calibration import expected_calibration_error, reliability, sharpness
from adaspec.evaluate.options import Options, Progress, silent
from adaspec.evaluate.render.markdown import table_markdown
from adaspec.evaluate.render.table import Text, foreign, simple_table
from adaspec.evaluate.selection import check_excluded, distinct_names
from adaspec.policy.artifact import check_destination, write_artifact
from adaspec.policy.learned import policy_of
from adaspec.policy.manifest import PolicyManifest
from adaspec.predict.model import NEURAL_FIRST, NEURAL_MORE, NGRAM_FIRST, NGRAM_MORE
from adaspec.predict.network import predict
from adaspec.replay.logged import Log, LoggedRequest, log_of, read_logged
from adaspec.trace.reader import open_traces
from adaspec.train.censored import Fitted, fit_censored, hazards_of, seen_in, survival
from adaspec.train.corpus import (
    HELD_OUT,
    MIN_HELD_OUT,
    MIN_TRAINED,
    check_alike,
    check_workloads,
    held_out_of,
    known_of,
    vocabulary_of,
)
from adaspec.train.heads import MIN_EXAMPLES, Settings, model_text
from adaspec.train.recipe import Product, manifest_of
from adaspec.train.token_tables import MIN_REQUESTS

Array = NDArray[np.float64]


def train_logged(
    traces: Sequence[Path],
    folder: Path,
    cost: CostModel,
    options: Options,
    exclude_workloads: Sequence[str] = (),
    force: bool = False,
    progress: Progress = silent,
    exclude_requests: tuple[str, ...] = (),
) -> Product:
    """Train on 70% of the logged requests, judge on the rest, and write the folder or nothing."""
    check_destination(folder, force)
    progress("reading", 0, 1)
    readers = open_traces(traces)
    check_alike(readers, "train on one of them")
    requests, left_out = read_logged(readers, TrainingError)
    where = ", ".join(str(reader.path) for reader in readers)
    check_excluded(exclude_requests, (each.request for each in requests), where)
    check_workloads(exclude_workloads, {each.request.workload for each in requests} | set(left_out))
    left_out = {name: why for name, why in left_out.items() if name not in exclude_workloads}
    requests = [
        each
        for each in requests
        if each.request.workload not in exclude_workloads
        and f"{each.request.workload}/{each.request.id}" not in exclude_requests
    ]
    is_held_out = held_out_of([each.request for each in requests])
    kept_back = [each for each, held_out in zip(requests, is_held_out, strict=True) if held_out]
    training = [each for each, held_out in zip(requests, is_held_out, strict=True) if not held_out]
    if len(training) < MIN_TRAINED or len(kept_back) < MIN_HELD_OUT:
        raise TrainingError(
            f"too few requests: {len(training)} are to train on and {len(kept_back)} kept back, "
            f"{MIN_TRAINED} and {MIN_HELD_OUT} are needed: log more traffic"
        )
    log = log_of(training)
    progress("reading", 1, 1)
    progress("training", 0, 2)
    settings = Settings(seed=options.seed, threads=options.workers)
    fitted = fit_censored(log, settings)
    progress("training", 1, 2)
    metrics = _judged(log_of(kept_back), fitted)
    progress("training", 2, 2)
    names: dict[str, Any] = {
        what: distinct_names(known_of(what, readers)) for what in ("target", "tokenizer", "drafter")
    }
    if not fitted.neural_cap:
        names["drafter"] = None
    manifest = manifest_of(
        [each.request for each in training],
        cost,
        fitted.neural_cap,
        cap=options.cap,
        static_tuned={},
        seed=options.seed,
        vocabulary_hash=vocabulary_of(readers),
        metrics=metrics,
        **names,
    )
    networks, tables = fitted.model.network_arrays(), fitted.model.table_arrays()
    policy = policy_of(folder.resolve().name, manifest, networks, tables)
    trained, held_out = _counts(training), _counts(kept_back)
    card = _card(manifest, log, trained, held_out, left_out, len(tables["keys"]))
    write_artifact(folder, manifest, networks, tables, model_text(fitted.boosters), card, force)
    requests_used = {"trained": trained, "held_out": held_out, "left_out": left_out}
    return Product(folder, policy, manifest, requests_used)


def _judged(log: Log, fitted: Fitted) -> dict[str, Any]:
    """How well the fit predicts each outcome that the log of unseen requests shows."""
    x = seen_in(log, [(fitted.model.tables, np.ones(len(log.recording), np.bool_))]).x
    curves, heads = fitted.model.curves, predict(fitted.model.networks["before"], x)
    columns, positions = log.recording.columns, log.at
    matched = columns.match[positions] > 0
    predicted = survival(heads[:, NGRAM_FIRST], heads[:, NGRAM_MORE], curves["ngram"])
    results = {
        "ngram S(1)": _prediction_quality(
            predicted[matched, 1], columns.run[positions[matched]] >= 1
        )
    }
    predicted = survival(heads[:, NEURAL_FIRST], heads[:, NEURAL_MORE], curves["neural"])
    hazards = hazards_of(log)
    for depth in range(1, fitted.neural_cap + 1):
        chosen = hazards.depth == depth
        step = hazards.step[chosen]
        reached = predicted[step, depth - 1]
        hazard = predicted[step, depth] / np.where(reached > 0, reached, 1.0)
        results[f"neural hazard {depth}"] = _prediction_quality(hazard, hazards.accepted[chosen])
    return {"identified": {name: each for name, each in results.items() if each}}


def _prediction_quality(predicted: Array, outcome: NDArray[np.bool_]) -> dict[str, float | None]:
    """Examples, means, AUC, log-loss and calibration error; empty if there are too few examples."""
    if len(outcome) < MIN_EXAMPLES or outcome.all() or not outcome.any():
        return {}
    came, predicted = outcome.astype(np.float64), np.clip(predicted, 1e-6, 1 - 1e-6)
    ece = expected_calibration_error(reliability(came, predicted))
    measures = {"said": predicted.mean(), "came": came.mean()}
    rounded = {name: round(float(value), 6) for name, value in measures.items()}
    return {"examples": len(outcome), **rounded, **sharpness(came, predicted), "ece": round(ece, 6)}


def _counts(requests: Sequence[LoggedRequest]) -> dict[str, int]:
    return dict(sorted(Counter(each.request.workload for each in requests).items()))


def _card(
    manifest: PolicyManifest,
    log: Log,
    trained: Mapping[str, int],
    held_out: Mapping[str, int],
    left_out: Mapping[str, Mapping[str, int]],
    entries: int,
) -> str:
    drafted = log.neural_len > 0
    reach = (
        f"Neural drafts were verified at {int(drafted.sum()):,} of {len(drafted):,} logged steps; "
        f"lengths up to {manifest.neural_cap} are identified, and it asks for no longer ones."
        if manifest.neural_cap
        else "**n-gram only:** the log holds no neural drafts, so this policy never asks for one."
    )
    missing = [f"{n:,} {why}" for each in left_out.values() for why, n in sorted(each.items())]
    keys = ("examples", "said", "came", "auc", "log_loss", "ece")
    workloads: list[list[Text]] = [
        [foreign(name), f"{n:,}", f"{held_out.get(name, 0):,}"] for name, n in trained.items()
    ]
    outcomes = [
        [name, *(f"{each[key]:.6g}" for key in keys)]
        for name, each in manifest.metrics["identified"].items()
    ]
    parts = [
        f"# A policy for {manifest.target or 'an unnamed target'}",
        "**Trained on logged traces alone: what it would gain in speed is not known.** A log knows "
        "only what was tried; replaying other choices needs a dense trace (`adaspec record`).",
        reach,
        "## Data",
        table_markdown(simple_table("", ["workload", "trained on", "kept back"], workloads)),
        *(["Left out: " + "; ".join(missing) + "."] if missing else []),
        f"A hash of each request's tokens decides whether it is kept back (about {HELD_OUT:.0%}).",
        "## Judged by what the log identifies",
        "On the requests kept back. n-gram outcomes follow from the text at every logged step; a "
        "neural hazard at depth d is whether token d was accepted where the d - 1 before it were.",
        table_markdown(simple_table("", ["what", *keys], outcomes)),
        "## Trained with",
        f"adaspec {manifest.adaspec_version}, cost model `{manifest.cost}`, seed {manifest.seed}, "
        f"default knobs, drafts of at most {manifest.cap} tokens.",
        f"`tables.npz` holds {entries:,} entries; those that fewer than {MIN_REQUESTS} training "
        "requests share are dropped.",
        "## Limits",
        "- Right where the logging policy chose its lengths by what the features say. Lengths "
        "chosen by confidences that were not logged bias the deeper hazards upwards.\n"
        "- Where the logging policy never drafted neurally, the model extrapolates.\n"
        "- It reads no drafted tokens and no confidences: the log holds neither for drafts that "
        "were not verified.",
    ]
    return "\n\n".join(parts) + "\n"
