"""How far predictions are trusted: what came of each source's drafts over what was said of them.

Models are off where their own choice falls: whoever picks the larger of two estimates picks the
error too. Only what was proposed counts here, so this is what it corrects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.desk import (
    CAME,
    DRAFTS,
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    NEURAL,
    NGRAM,
    RECALIBRATE,
    SAID,
    SPLICE,
    USED,
    Desk,
)

Array = NDArray[np.float64]
Ints = NDArray[np.int32]

_FORGET = 0.999
"""What is kept of a source's record at each of its drafts: it is evidence that makes old."""
_FORGET_IDLE = 0.999
"""The same in a step in which the source drafts nothing: one day it is tried again."""
_IMAGINED = 5.0
"""Drafts imagined to have come as said. Drafts and not tokens: a long one that fails at its first
token says as little of the next as a short one, and copying that it ended would stay ended."""
_MOST = 1.15
_FADED = 1e-6


@compiled
def trust_in(desk: Desk, knobs: Array, source: int) -> float:
    """What came over what was said of a source, shrunk to 1."""
    if knobs[RECALIBRATE] <= 0:
        return 1.0
    said, drafts = desk.trust[source, SAID], desk.trust[source, DRAFTS]
    # After hours without a draft the record has faded to less than a float can divide by.
    if said <= 0 or drafts < _FADED:
        return 1.0
    imagined = _IMAGINED * said / drafts
    return min(_MOST, (desk.trust[source, CAME] + imagined) / (said + imagined))


@compiled
def trusted(said: float, exponent: float, trust: float) -> float:
    """A head's probability after its knob and its record; 0 where it says nothing sensible."""
    return min(1.0, min(1.0, said) ** exponent * trust) if said > 0 else 0.0


@compiled
def commit(desk: Desk, neural_len: Ints, ngram_len: Ints) -> None:
    """Note what is expected of the chosen lengths, to be held against what comes."""
    for row in range(neural_len.shape[0]):
        desk.said[row] = 0.0
        for j in range(1, min(neural_len[row], LONGEST_NEURAL) + 1):
            desk.said[row, NEURAL] += desk.neural[row, j]
        if neural_len[row] > 0:
            desk.said[row, SPLICE] = desk.splice_said[row, neural_len[row]]
        else:
            for j in range(1, min(ngram_len[row], LONGEST_NGRAM) + 1):
                desk.said[row, NGRAM] += desk.ngram[row, j]


@compiled
def weigh_record(desk: Desk, source: int, said: float, came: float, drafts: int) -> None:
    """Hold what came of a source's drafts against what was said of them before trust."""
    record = desk.trust[source]
    fade = _FORGET**drafts if drafts > 0 else _FORGET_IDLE
    # Held against what trust had left of it, a record would correct only half of what is wrong.
    used = record[USED]
    record[SAID] = record[SAID] * fade + (said / used if used > 0 else 0.0)
    record[CAME] = record[CAME] * fade + came
    record[DRAFTS] = record[DRAFTS] * fade + drafts
