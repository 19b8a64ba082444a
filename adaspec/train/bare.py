"""The same model without token tables, to compare calibrations with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.features import BEFORE, TABLES_AT
from adaspec.predict.model import Model
from adaspec.predict.splicing import COPY_AT, SPLICE
from adaspec.replay.recording import Recording
from adaspec.train.examples import Examples
from adaspec.train.heads import Settings, fit_before
from adaspec.train.teacher import distilled
from adaspec.train.training import Trained

TABLE_FEATURES = (*BEFORE[TABLES_AT:], *SPLICE[COPY_AT:])


def hidden(examples: Examples, names: Collection[str]) -> Examples:
    """The examples with some features set to NaN: trees never split on those."""
    return Examples(
        *(
            replace(
                sample, x=np.where(np.isin(features, list(names)), np.float32(np.nan), sample.x)
            )
            for sample, features in zip(examples.samples, (BEFORE, SPLICE, EVIDENCE), strict=True)
        )
    )


def without_tables(recording: Recording, trained: Trained, settings: Settings) -> Model:
    """A model of the same examples that never saw what the token tables say."""
    examples, model = hidden(trained.examples, TABLE_FEATURES), trained.model
    boosters, curves = fit_before(recording, examples, settings)
    before = distilled(
        "before", boosters, examples.decisions, settings.distilling, settings.threads
    )
    curves["splice"] = model.curves["splice"]
    return replace(model, networks={**model.networks, "before": before}, curves=curves)
