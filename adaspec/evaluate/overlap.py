"""How much of an output stands in its prompt already, and whether n-gram drafts gain by it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.documents import json_types

LONGEST = 4
"""The longest n-grams that are compared, as in BLEU."""
_LEAST_REQUESTS = 3
"""The rank correlation of fewer requests is 1 or -1, whatever they are."""


def bleu_overlaps(prompt: NDArray[np.int32], output: NDArray[np.int32]) -> list[float]:
    """BLEU's n-gram precision for n = 1 to `LONGEST`: how much of the output is in the prompt.

    An n-gram of the output counts as often as it stands in the prompt, at most. BLEU's penalty for
    short outputs is left out. NaN where the output has fewer than n tokens.
    """
    there, wanted = prompt.tolist(), output.tolist()
    return [_overlap(_ngrams(there, n), _ngrams(wanted, n)) for n in range(1, LONGEST + 1)]


def overlap_document(requests: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Per n: the mean overlap of some requests, and its rank correlation with what n-gram gains.

    A request is its overlaps, and behind them its mean n-gram accepted count. A figure is None
    where no requests, too few for a correlation, or only equal ones leave it open.
    """
    columns = np.array(requests, np.float64).reshape(-1, LONGEST + 1)
    rows = []
    for n in range(1, LONGEST + 1):
        pairs = columns[:, [n - 1, LONGEST]]
        pairs = pairs[~np.isnan(pairs).any(axis=1)]
        row = {
            "n": n,
            "requests": len(pairs),
            "overlap_mean": pairs[:, 0].mean() if len(pairs) else None,
            "rank_correlation": _rank_correlation(pairs),
        }
        rows.append(json_types(row))
    return rows


def _ngrams(tokens: list[int], n: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(tokens[first:] for first in range(n)), strict=False))


def _overlap(there: Counter[tuple[int, ...]], wanted: Counter[tuple[int, ...]]) -> float:
    return (wanted & there).total() / wanted.total() if wanted else math.nan


def _rank_correlation(pairs: NDArray[np.float64]) -> float | None:
    if len(pairs) < _LEAST_REQUESTS or (pairs == pairs[0]).all(axis=0).any():
        return None
    from scipy.stats import spearmanr  # slow to load

    return float(spearmanr(pairs).statistic)
