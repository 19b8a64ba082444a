"""The learned policy's working memory, and its planner's knobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError, nearest
from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.features import FEATURES, HISTORY
from adaspec.predict.kernels import Scratch
from adaspec.predict.model import HEADS, Model
from adaspec.predict.splicing import SPLICE as SPLICE_FEATURES
from adaspec.predict.tables import LEVELS

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

LONGEST_NEURAL = 8
LONGEST_NGRAM = 48
LONGEST_SPLICE = 16

KNOBS = {
    "ngram_exponent": 1.6,
    "neural_exponent": 1.0,
    "splice_weight": 0.8,
    "splice_tokens": 3.0,
    "pace_steps": 1000.0,
    "prior_speedup": 2.0,
    "prior_steps": 10.0,
    "recalibrate": 1.0,
}
"""The planner's knobs and their defaults; training tunes some of them.

splice_tokens: how many tokens the splice that a neural draft may hope for is taken to verify.
"""
(
    NGRAM_EXPONENT,
    NEURAL_EXPONENT,
    SPLICE_WEIGHT,
    SPLICE_TOKENS,
    PACE,
    PRIOR,
    PRIOR_STEPS,
    RECALIBRATE,
) = range(8)

PACE_RING = 1000
SUM_TOKENS, SUM_TIME, STEPS = range(3)
NGRAM, NEURAL, SPLICE = 0, 1, 2
SAID, CAME, USED, DRAFTS = range(4)
CAME_OF_IT, EXPECTED, HOLDING, HELD, RESTED, PATIENCE = range(6)
PROMPT_TOKENS, PROMPTS, ANSWER_TOKENS, ANSWERS, CONTEXT, LEANING, PROBING = range(6, 13)


class Desk(NamedTuple):
    """Working memory of one policy, for as many slots as there are."""

    history: Array
    x: Floats
    heads: Array
    neural: Array
    """(rows, LONGEST_NEURAL + 1) survival of neural drafts."""
    ngram: Array
    gain: Array
    """Expected tokens of a splice behind neural tokens that are all accepted."""
    hope: Array
    """(rows, LONGEST_NEURAL + 1) what a splice behind so many neural tokens is worth."""
    splice_len: Ints
    """The same shape: how many tokens to splice on, once the match behind them is known."""
    splice_said: Array
    """The tokens expected of that splice."""
    ngram_value: Array
    ngram_best: Ints
    worth: Array
    """What the batch's best plans are worth with 0, 1, .. forwards at hand."""
    value: Array
    """The same where tokens that fill a padded batch are free."""
    alone: Array
    """What each row's n-gram draft promised before anything was drafted."""
    splice_x: Floats
    splice_heads: Array
    spliced: Array
    """(rows, LONGEST_NEURAL + 1, LONGEST_SPLICE + 1) survival of what could be copied behind so
    many neural tokens that are all accepted."""
    evidence_x: Floats
    evidence_heads: Array
    agreed: Ints
    least: Floats
    said: Array
    """(rows, 3) tokens expected of what was proposed, per source."""
    trust: Array
    """(3, 4) per source tokens said before trust, tokens that came, the trust in use, drafts."""
    guard: Array
    """What the drafter brought and was expected to, when to try it again, what requests are
    like."""
    known: Ints
    """Output tokens of every slot's request, when it was last seen."""
    ring: Array
    pace: Array
    keys: NDArray[np.uint64]
    before: Scratch
    splice: Scratch
    evidence: Scratch


def new_desk(models: Sequence[Model], slots: int) -> Desk:
    """Fresh working memory for so many slots, whichever of the models speaks."""
    widest = {}
    for name in HEADS:
        # A forest that is not there is never asked.
        forests = [model.forests.get(name, model.forests["splice"]) for model in models]
        widest[name] = max((forest.scratch() for forest in forests), key=lambda s: len(s.keys))
    return Desk(
        history=np.zeros((slots, HISTORY)),
        x=np.zeros((slots, FEATURES), np.float32),
        heads=np.zeros((slots, len(HEADS["before"]))),
        neural=np.zeros((slots, LONGEST_NEURAL + 1)),
        ngram=np.zeros((slots, LONGEST_NGRAM + 1)),
        gain=np.zeros(slots),
        hope=np.zeros((slots, LONGEST_NEURAL + 1)),
        splice_len=np.zeros((slots, LONGEST_NEURAL + 1), np.int32),
        splice_said=np.zeros((slots, LONGEST_NEURAL + 1)),
        ngram_value=np.zeros(slots),
        ngram_best=np.zeros(slots, np.int32),
        worth=np.zeros(LONGEST_NEURAL + 1),
        value=np.zeros(LONGEST_NEURAL + 1),
        alone=np.zeros(slots),
        splice_x=np.zeros((slots, len(SPLICE_FEATURES)), np.float32),
        splice_heads=np.zeros((slots, len(HEADS["splice"]))),
        spliced=np.zeros((slots, LONGEST_NEURAL + 1, LONGEST_SPLICE + 1)),
        evidence_x=np.zeros((slots, len(EVIDENCE)), np.float32),
        evidence_heads=np.zeros((slots, len(HEADS["evidence"]))),
        agreed=np.zeros(slots, np.int32),
        least=np.zeros((slots, 2), np.float32),
        said=np.zeros((slots, 3)),
        trust=np.zeros((3, 4)),
        guard=np.zeros(13),
        known=np.zeros(slots, np.int32),
        ring=np.zeros((PACE_RING, 2)),
        pace=np.zeros(3),
        keys=np.zeros(LEVELS, np.uint64),
        **widest,
    )


def knob_row(knobs: Mapping[str, float]) -> Array:
    """Knobs as compiled code takes them; those not named have their defaults."""
    for name in knobs:
        if name not in KNOBS:
            raise PolicyError(f"unknown planner knob '{name}'{nearest(name, KNOBS)}")
    row = np.array([float(knobs.get(name, default)) for name, default in KNOBS.items()])
    if not np.isfinite(row).all() or (row < 0).any():
        raise PolicyError("planner knobs must be finite and not negative")
    row[PACE] = min(max(row[PACE], 1.0), float(PACE_RING))
    return row
