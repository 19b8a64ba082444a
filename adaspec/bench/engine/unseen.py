"""Prompts that the policies were not trained on: the others would flatter them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from adaspec.bench.engine.traffic import Call
from adaspec.bench.lookup import BenchError
from adaspec.evaluate.evaluation import seen_in_training
from adaspec.evaluate.selection import content_hash
from adaspec.replay.contender import parse_contender
from adaspec.trace.reader import open_traces


def trained_on(policies: Sequence[str]) -> frozenset[str]:
    """Content hashes of all requests that these policies were trained on."""
    # A class of one's own is imported by the server alone, and says nothing of its training.
    named = [parse_contender(each) for each in policies if not each.startswith("python:")]
    return seen_in_training(named)


def leave_out_trained(
    calls: Mapping[str, Sequence[Call]], traces: Sequence[Path], trained: frozenset[str]
) -> tuple[dict[str, list[Call]], int]:
    """The calls whose prompts no policy saw, as far as the traces tell, and how many were others.

    A `BenchError` where a workload has none left.
    """
    seen = {
        tuple(request.prompt_tokens.tolist())
        for reader in (open_traces(traces) if trained else ())
        for request in reader.requests()
        if content_hash(request) in trained
    }
    kept = {
        name: [call for call in each if call.prompt not in seen] for name, each in calls.items()
    }
    for name, each in kept.items():
        if not each:
            raise BenchError(
                f"workload '{name}': a policy was trained on all of its {len(calls[name])} "
                "prompts: give prompts that it never saw"
            )
    return kept, sum(map(len, calls.values())) - sum(map(len, kept.values()))
