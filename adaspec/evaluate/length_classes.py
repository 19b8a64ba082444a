"""Mean accepted tokens along the output, for a workload's short, middle and long outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.documents import json_types

CLASSES = ("short", "middle", "long")
"""A third of the requests each, by the length of the output."""
PARTS = 10
"""The parts of equal length into which each output is divided."""


@dataclass(frozen=True, slots=True)
class AlongOutput:
    """One request's accepted counts of one source, summed in each part of the output."""

    output_tokens: int
    accepted: NDArray[np.int64]
    positions: NDArray[np.int64]
    """The number of positions in each part whose count is known."""


def along_output(counts: NDArray[Any]) -> AlongOutput:
    """Sum accepted counts by position, without position 0, where nothing is decided.

    A count of -1 is unknown.
    """
    decided = counts[1:]
    part = np.arange(len(decided)) * PARTS // max(len(decided), 1)
    accepted = np.bincount(part, np.maximum(decided, 0), PARTS).astype(np.int64)
    return AlongOutput(len(counts), accepted, np.bincount(part[decided >= 0], minlength=PARTS))


def classes_document(source: str, requests: Sequence[AlongOutput]) -> list[dict[str, Any]]:
    """Per class: the mean over all positions in each part, None where there are none.

    Outputs of equal length are in one class, such as all that reached a limit of tokens in `long`.
    A class that is empty for it is left out.
    """
    lengths = np.array([each.output_tokens for each in requests])
    number = np.searchsorted(np.quantile(lengths, [1 / 3, 2 / 3]), lengths, side="right")
    rows = []
    for index in np.unique(number):
        members = [each for each, at in zip(requests, number, strict=True) if at == index]
        positions = np.sum([each.positions for each in members], axis=0)
        accepted = np.sum([each.accepted for each in members], axis=0)
        mean = np.divide(accepted, positions, out=np.full(PARTS, np.nan), where=positions > 0)
        its = lengths[number == index]
        row = {
            "source": source,
            "length_class": CLASSES[index],
            "requests": len(members),
            "output_tokens": [its.min(), its.max()],
            "accepted_mean": mean,
        }
        rows.append(json_types(row))
    return rows
