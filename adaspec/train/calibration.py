"""How well calibrated a model's survival curves are, at every position of unseen requests.

Networks and curves are judged by themselves, as they predict before drafting: without recalibration
or evidence. A policy that reads the drafted tokens is also judged token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.evaluate.calibration import BINS, judge, sharpness
from adaspec.policy.learned import LearnedPolicy
from adaspec.predict.features import EXPECTED
from adaspec.predict.model import ACCEPTED_NEXT, BEFORE_HEADS, Model
from adaspec.predict.network import predict
from adaspec.predict.survival import fill_survivals
from adaspec.train.outcomes import Outcomes, Recorded
from adaspec.train.rows import Array, Floats, Members, survey

DEPTHS = 4
"""The survival probabilities S(1) to S(4) are judged."""
DRAFTED = "drafted"
"""Single tokens of the neural drafter, judged after they were seen."""


def calibration_of(
    recorded: Recorded, judged: Sequence[tuple[LearnedPolicy, Members]]
) -> dict[str, Any]:
    """The calibration document: ECE, AUC, log-loss and bins per source and depth.

    Each policy is judged by its requests, and all together. `drafted` has the predictions for
    single tokens after they were seen, and under `before` those from before; it is empty if no
    policy reads drafted tokens.
    """
    seen: dict[tuple[str, int], list[tuple[NDArray[np.bool_], Array]]] = {}
    """By source and depth, what came and what was predicted of it."""

    def add(source: str, depth: int, outcomes: Outcomes, shown: Any, predicted: Array) -> None:
        pairs = seen.setdefault((source, depth), [])
        pairs.append((outcomes.right[shown] >= depth, predicted[shown]))

    for policy, members in judged:
        rows = survey(recorded.recording, policy, members, drafts=False)["before"]
        neural, copied = recorded.neural(rows.at), recorded.copied(rows.at)
        copies = recorded.recording.columns.match[rows.at] > 0
        for source, outcomes, usable in (("ngram", copied, copies), ("neural", neural, True)):
            predicted = survivals(policy.model, rows.x, source)
            for depth in range(1, DEPTHS + 1):
                shown = (outcomes.known >= depth) & usable
                add(source, depth, outcomes, shown, predicted[:, depth - 1])
        if not policy.model.reads_evidence:
            continue
        rows = survey(recorded.recording, policy, members, drafts=True)["evidence"]
        outcomes = recorded.neural(rows.at)
        after = predict(policy.model.networks["evidence"], rows.x)[:, ACCEPTED_NEXT]
        predicted = np.stack([after, rows.x[:, EXPECTED].astype(np.float64)], axis=1)
        for depth in range(1, DEPTHS + 1):
            # Tokens behind a wrong one are left out.
            shown = (
                (rows.depth == depth) & (outcomes.known >= depth) & (outcomes.right >= depth - 1)
            )
            add(DRAFTED, depth, outcomes, shown, predicted)
    sources: dict[str, list[dict[str, Any]]] = {}
    drafted = []
    for (source, depth), pairs in seen.items():
        came, predicted = (np.concatenate(each) for each in zip(*pairs, strict=True))
        came = came.astype(np.float64)
        if not len(came):
            continue
        if source == DRAFTED:
            after, before = predicted.T
            entry = judge(came, after) | {"before": sharpness(came, before)}
            drafted.append({"token": depth} | entry)
        else:
            entry = {"survival": depth} | judge(came, predicted)
            sources.setdefault(source, []).append(entry)
    return {"bins": BINS, "sources": sources, "drafted": drafted}


def survivals(model: Model, x: Floats, source: str) -> Array:
    """S(1) .. S(DEPTHS) of a source by networks and curves, one row per row of features."""
    heads = predict(model.networks["before"], x)
    first, more = (
        np.ascontiguousarray(heads[:, BEFORE_HEADS.index(f"{source}_{head}")])
        for head in ("first", "more")
    )
    out = np.empty((len(x), DEPTHS + 1))
    fill_survivals(first, more, model.curves[source], out)
    return np.clip(out[:, 1:], 0.0, 1.0)
