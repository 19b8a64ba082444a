"""The protocol's rows: what runs, on what, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaspec.evaluate.evaluation import evaluate_by_protocol
from adaspec.evaluate.options import Options
from adaspec.evaluate.selection import Selection
from adaspec.replay.contender import parse_contender


@pytest.fixture(scope="module")
def recorded(requests_of):
    """Requests that hold a recorded n-gram list, as the importer stores them."""
    return [
        replace(r, workload="gsm8k", ngram_accepted=np.maximum(r.neural_accepted - 1, -1))
        for r in requests_of(count=3, workloads=1)
    ]


@pytest.fixture(scope="module")
def run(recorded):
    def make(specs, requests=recorded, **options):
        selection = Selection(tuple(requests), 8, ("traces",), None, None, False)
        named = [parse_contender(spec) for spec in specs]
        return evaluate_by_protocol(selection, named, "specdecode-bench", Options(**options))

    return make


def test_only_the_named_policies_run_with_a_row_per_workload_and_no_mix(run):
    specs = ["fixed:neural:3", "oracle:combine", "fixed:ngram:3"]
    report = run(specs, concurrency=(1, 8))
    keys = [(row["workload"], row["policy"], row["concurrency"]) for row in report["rows"]]
    assert sorted(keys) == sorted(("gsm8k", spec, n) for spec in specs for n in (1, 8))
    assert report["headline"] == []
    for row in report["rows"]:
        assert row["tokens_per_s"] > 0
        assert (row["ci95"], row["drafted_per_step"]) == (None, None)
    assert report["protocol"] == report["cost"] == "specdecode-bench"
