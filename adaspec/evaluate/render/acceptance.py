"""What the figures of a trace need of each request: accepted counts per position, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.trace.schema import Request

Counts = NDArray[np.int16]
NgramCounts = Mapping[tuple[str, str], NDArray[Any]]
"""(workload, id) -> accepted n-gram tokens per position; entry 0, or any negative, is null."""

SOURCES = ("neural", "ngram")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One request's accepted counts per position from 1 on; None where a source never ran."""

    workload: str
    id: str
    neural: Counts | None
    ngram: Counts | None
    paired: bool
    """Whether both are there and belong to the same run, position by position."""

    def of(self, source: str) -> Counts | None:
        """The counts of `source`, one of `SOURCES`."""
        return self.neural if source == "neural" else self.ngram


def acceptance(requests: Iterable[Request], ngram: NgramCounts | None = None) -> list[Acceptance]:
    """The accepted counts of `requests`; where `ngram` has none, those the engine recorded.

    Requests are consumed one at a time, so a streamed trace needs memory for its counts alone.
    """
    counted = []
    for request in requests:
        given = (ngram or {}).get((request.workload, request.id), request.ngram_accepted)
        neural, copied = _counts(request.neural_accepted), _counts(given)
        paired = (
            request.paired
            and neural is not None
            and copied is not None
            and len(neural) == len(copied)
        )
        counted.append(Acceptance(request.workload, request.id, neural, copied, paired))
    return counted


def workloads_of(requests: Sequence[Acceptance]) -> list[str]:
    """The workloads, by name."""
    return sorted({each.workload for each in requests})


def known(counts: Counts) -> Counts:
    """The counts at the positions where there is one."""
    return counts[counts >= 0]


def pooled(requests: Sequence[Acceptance], workload: str, source: str) -> Counts:
    """Every known count of `source` in `workload`."""
    parts = [
        known(counts)
        for each in requests
        if each.workload == workload and (counts := each.of(source)) is not None
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int16)


def differences(each: Acceptance) -> NDArray[np.int16]:
    """n-gram - neural at every position where both are known; empty for an unpaired request."""
    if not each.paired or each.neural is None or each.ngram is None:
        return np.empty(0, dtype=np.int16)
    both = (each.neural >= 0) & (each.ngram >= 0)
    return (each.ngram - each.neural)[both]


def survival(counts: NDArray[Any], longest: int) -> NDArray[np.float64]:
    """P(accepted >= j) for j in 0..longest."""
    histogram = np.bincount(np.minimum(counts, longest), minlength=longest + 1)
    return histogram[::-1].cumsum()[::-1] / max(len(counts), 1)


def chosen(requests: Sequence[Acceptance], workload: str, count: int) -> list[Acceptance]:
    """`count` requests of a workload, spread evenly by how much n-gram took of them.

    Paired requests of 64 positions and more come first, so that both sources have something to
    show; the choice depends on nothing but the data.
    """
    mine = [each for each in requests if each.workload == workload]
    for wanted in (
        [each for each in mine if each.paired and _length(each) >= _LONG_ENOUGH],
        [each for each in mine if each.paired],
        [each for each in mine if _length(each)],
    ):
        if wanted:
            ranked = sorted(wanted, key=lambda each: (_mean(each.ngram), each.id))
            if len(ranked) <= count:
                return ranked
            evenly = [round((i + 0.5) / count * len(ranked) - 0.5) for i in range(count)]
            return [ranked[index] for index in evenly]
    return []


_LONG_ENOUGH = 64


def _length(each: Acceptance) -> int:
    return max((len(c) for c in (each.neural, each.ngram) if c is not None), default=0)


def _mean(counts: Counts | None) -> float:
    return 0.0 if counts is None or not len(known(counts)) else float(known(counts).mean())


def _counts(given: NDArray[Any] | None) -> Counts | None:
    """Counts from position 1 on, null as -1."""
    if given is None or len(given) < 2:
        return None
    values = np.asarray(given, dtype=np.float64)[1:]
    return np.where(np.isfinite(values), values, -1).clip(-1, 32767).astype(np.int16)
