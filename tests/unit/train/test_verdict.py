"""What training says of its policy: the lead, its interval, and where another one should serve."""

from __future__ import annotations

from typing import Any

import pytest

from adaspec.train.metrics import FEW, verdict


def report_of(lead: float, requests: int) -> dict[str, Any]:
    row = {"workload": "all", "concurrency": 8, "tokens_per_s": 1.0}
    return {
        "traces": {"requests": {"a": requests - 1, "b": 1}},
        "rows": [
            {**row, "policy": "mine", "speedup": 2.0, "detail": {}},
            {**row, "policy": "static:best", "speedup": 1.9, "detail": {"spec": "hybrid:4:16:3"}},
        ],
        "headline": [
            {
                "workload": "all",
                "concurrency": 8,
                "policy": "mine",
                "lift_over_vllm_best": 0.2,
                "lift_over_vllm_best_ci95": [0.1, 0.3],
                "lift_over_static_best": lead,
                "lift_ci95": None,
            },
            {"workload": "a", "concurrency": 8, "policy": "mine"},
        ],
    }


@pytest.mark.parametrize("lead", [0.05, -0.02])
def test_a_load_has_its_leads_and_a_rule_that_is_ahead_is_named(lead: float) -> None:
    first, *others = verdict(report_of(lead, FEW))
    assert first == (
        "8 at once: 2.00x no speculation, +20.0% (+10.0% .. +30.0%) over the best of vLLM's own "
        f"methods, {lead:+.1%} over the best static rule"
    )
    assert len(others) == (lead < 0)
    assert all("'hybrid:4:16:3', is ahead" in line for line in others)


def test_few_requests_are_said_to_be_few() -> None:
    *_, last = verdict(report_of(0.1, FEW - 1))
    assert last.startswith(f"judged on {FEW - 1} requests alone")
