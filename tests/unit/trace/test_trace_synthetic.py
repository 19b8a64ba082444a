from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from synthetic import (
    NEURAL_CAP,
    WORKLOADS,
    Workload,
    synthesize,
    write_synthetic,
)

from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request


def away_from_the_end(request: Request) -> np.ndarray:
    assert request.neural_accepted is not None
    return request.neural_accepted[1 : -NEURAL_CAP or None]


def matched_and_right(text: list[int], start: int, length: int) -> tuple[float, float]:
    """How often a look-up of the last `length` tokens finds anything, and is right about one."""
    latest: dict[tuple[int, ...], int] = {}
    found = right = 0
    for at in range(length, len(text)):
        key = tuple(text[at - length : at])
        if at >= start and key in latest:
            found += 1
            right += text[latest[key]] == text[at]
        latest[key] = at
    return found / (len(text) - start), right / max(found, 1)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_synthetic(tmp_path / name, 3, requests_per_workload=2)
    for file in ("manifest.json", "part-00000.parquet"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_a_request_depends_on_nothing_but_seed_workload_and_number() -> None:
    (alone,) = list(synthesize(5, WORKLOADS[1:2], 2))[1:]
    among = next(r for r in synthesize(5, requests_per_workload=3) if r.workload == "chat")
    among = list(synthesize(5, WORKLOADS[::-1], 3))[3 * WORKLOADS[::-1].index(WORKLOADS[1]) + 1]
    np.testing.assert_array_equal(alone.output_tokens, among.output_tokens)
    np.testing.assert_array_equal(alone.confidences, among.confidences)


def test_seeds_may_be_read_together() -> None:
    ids = [request.id for seed in (1, 2) for request in synthesize(seed, WORKLOADS[:1], 5)]
    assert len(set(ids)) == 10


def test_the_trace_is_sound_and_says_that_it_is_synthetic(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "t", 1, requests_per_workload=3)
    reader = TraceReader(tmp_path / "t")
    assert reader.manifest.synthetic
    assert reader.workloads() == {workload.name: 3 for workload in WORKLOADS}
    assert all(request.paired for request in reader.requests())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_neural_drafter_is_right_as_often_as_its_law_says(workload: Workload) -> None:
    means = [
        [(away_from_the_end(request) >= drafted).mean() for drafted in range(1, NEURAL_CAP + 1)]
        for request in synthesize(11, [workload], 150)
    ]
    error = np.std(means, axis=0) / np.sqrt(len(means))
    lengths = np.arange(1, NEURAL_CAP + 1)
    hard, easy = workload.hard_hit**lengths, workload.easy_hit**lengths
    expected = workload.hard_share * hard + (1 - workload.hard_share) * easy
    assert (np.abs(np.mean(means, axis=0) - expected) < 4 * error).all()


def test_confidences_separate_right_from_wrong_as_their_law_says() -> None:
    right, wrong = [], []
    for request in synthesize(2, WORKLOADS[:1], 20):
        assert request.neural_accepted is not None
        assert request.confidences is not None
        for at, accepted in enumerate(request.neural_accepted[:-NEURAL_CAP]):
            if at and accepted < NEURAL_CAP:
                wrong.append(request.confidences[at, accepted])
                if accepted:
                    right.append(request.confidences[at, 0])
    higher = np.array(right)[:2000, None] > np.array(wrong)[None, :2000]
    auc = higher.mean(axis=(0, 1))
    truth = 0.5 * (1 + math.erf(WORKLOADS[0].separation / 2))
    np.testing.assert_allclose(auc, [truth, truth, 1 - truth], atol=0.02)


def test_copying_makes_look_ups_right_where_the_workload_copies() -> None:
    rates = {}
    for workload in WORKLOADS:
        pairs = [
            matched_and_right(
                [*request.prompt_tokens.tolist(), *request.output_tokens.tolist()],
                len(request.prompt_tokens),
                3,
            )
            for request in synthesize(0, [workload], 15)
        ]
        rates[workload.name] = np.mean([found * right for found, right in pairs])
    assert rates["edits"] > 0.5
    assert rates["edits"] > 2 * rates["summaries"] > 2 * rates["chat"]
