"""Features that an ablation hides: a value that is missing everywhere is never split on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.features import BEFORE, TABLES_AT
from adaspec.predict.model import Model
from adaspec.predict.splicing import COPY_AT, SPLICE
from adaspec.replay.tape import Tape
from adaspec.train.heads import Examples, Settings, fit_before, model_of
from adaspec.train.training import Trained

FACTS = {
    *("match_length", "match_agree", "match_seen", "match_log_distance", "match_available"),
    *("match_in_prompt", "position", "log_context_tokens", "prompt_tokens"),
    *("behind_length", "behind_agree", "behind_seen", "behind_available", "behind_tokens"),
    "neural_survival",
}
"""What is known of a step without its request's past, token tables aside."""

# How a request differs from what the tables said of it is known by the tables alone.
TABLE_FEATURES = (*BEFORE[TABLES_AT:], "neural_surprise", "ngram_surprise", *SPLICE[COPY_AT:])
HISTORY_FEATURES = tuple(
    dict.fromkeys(n for n in (*BEFORE[:TABLES_AT], *SPLICE[:COPY_AT]) if n not in FACTS)
)


def hidden(examples: Examples, names: Collection[str]) -> Examples:
    """The same examples with these features missing, in whichever stages they occur."""
    return replace(
        examples,
        x=_blanked(examples.x, BEFORE, names),
        splice_x=_blanked(examples.splice_x, SPLICE, names),
        evidence_x=_blanked(examples.evidence_x, EVIDENCE, names),
    )


def without_tables(tape: Tape, trained: Trained, settings: Settings) -> Model:
    """What the same examples teach of both sources without token tables; never to be served."""
    examples = hidden(trained.examples, TABLE_FEATURES)
    boosters, curves = fit_before(tape, examples, settings)
    groups = {"before": boosters, "splice": trained.boosters["splice"]}
    spliced = trained.model.curves["splice"]
    return model_of(
        groups, {**curves, "splice": spliced}, trained.model.tables, trained.model.factors
    )


def _blanked(
    x: NDArray[np.float32], features: tuple[str, ...], names: Collection[str]
) -> NDArray[np.float32]:
    at = [place for place, name in enumerate(features) if name in names]
    if not at:
        return x
    x = x.copy()
    x[:, at] = np.nan
    return x
