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
from adaspec.train.outcomes import Recorded
from adaspec.train.rows import Array, Floats, Members, survey

DEPTHS = 4
"""The survival probabilities S(1) to S(4) are judged."""
_Predictions = list[tuple[NDArray[np.bool_], Array]]
"""Outcomes, and what was predicted of them."""


def calibration_of(
    recorded: Recorded, judged: Sequence[tuple[LearnedPolicy, Members]]
) -> dict[str, Any]:
    """The calibration document: ECE, AUC, log-loss and bins per source and depth.

    Each policy is judged by its requests, and all together. `drafted` has the predictions for
    single tokens after they were seen, and under `before` those from before; it is empty if no
    policy reads drafted tokens.
    """
    curves: dict[str, list[_Predictions]] = {
        source: [[] for _ in range(DEPTHS)] for source in ("ngram", "neural")
    }
    tokens: list[_Predictions] = [[] for _ in range(DEPTHS)]
    for policy, members in judged:
        rows = survey(recorded.recording, policy, members, drafts=False)["before"]
        copies = recorded.recording.columns.match[rows.at] > 0
        neural, copied = recorded.neural(rows.at), recorded.copied(rows.at)
        for source, outcomes, usable in (("ngram", copied, copies), ("neural", neural, True)):
            predicted = survivals(policy.model, rows.x, source)
            for depth, pairs in enumerate(curves[source], 1):
                shown = (outcomes.known >= depth) & usable
                pairs.append((outcomes.right[shown] >= depth, predicted[shown, depth - 1]))
        if policy.model.reads_evidence:
            _add_drafted(recorded, policy, members, tokens)
    sources = {
        source: [
            {"survival": depth} | judge(*pair)
            for depth, pair in enumerate(map(_pooled, pairs), 1)
            if len(pair[0])
        ]
        for source, pairs in curves.items()
    }
    drafted = []
    for depth, pairs in enumerate(tokens, 1):
        right, predicted = _pooled(pairs) if pairs else (np.empty(0), np.empty((0, 2)))
        if len(right):
            before, after = predicted.T
            entry = judge(right, after) | {"before": sharpness(right, before)}
            drafted.append({"token": depth} | entry)
    found = {source: entries for source, entries in sources.items() if entries}
    return {"bins": BINS, "sources": found, "drafted": drafted}


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


def _add_drafted(
    recorded: Recorded, policy: LearnedPolicy, members: Members, tokens: list[_Predictions]
) -> None:
    """Whether each drafted token was right, and what was predicted before and after it was seen.

    Tokens behind a wrong one are left out.
    """
    rows = survey(recorded.recording, policy, members, drafts=True)["evidence"]
    outcomes = recorded.neural(rows.at)
    after = predict(policy.model.networks["evidence"], rows.x)[:, ACCEPTED_NEXT]
    predicted = np.stack([rows.x[:, EXPECTED].astype(np.float64), after], axis=1)
    for depth, pairs in enumerate(tokens, 1):
        reached = (rows.depth == depth) & (outcomes.known >= depth)
        reached &= outcomes.right >= depth - 1
        pairs.append((outcomes.right[reached] >= depth, predicted[reached]))


def _pooled(pairs: _Predictions) -> tuple[Array, Array]:
    outcomes, predicted = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return outcomes.astype(np.float64), predicted
