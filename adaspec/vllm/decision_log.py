"""Logs what was decided in a few steps per second and why, a line of JSON for each step."""

from __future__ import annotations

import json
import logging
import math
import time
from typing import Any

from adaspec.policy.planner.state import SPLICE
from adaspec.vllm.events import DraftedStep, Observer, decisions_of, expected_tokens

log = logging.getLogger("vllm.adaspec")

MAX_ROWS = 8
"""A line tells of no more requests than these; the first ones of the batch."""
PREFIX = "adaspec: decision "
"""What stands before the JSON."""


class DecisionLog(Observer):
    """Logs the steps that come when the last logged one is long enough ago."""

    def __init__(self, steps_per_s: float) -> None:
        self._period_s = 1.0 / steps_per_s
        self._due_s = -math.inf

    def proposed(self, event: DraftedStep) -> None:
        """Log the step if it is due."""
        now_s = time.monotonic()
        if now_s < self._due_s or not log.isEnabledFor(logging.INFO):
            return
        self._due_s = now_s + self._period_s
        log.info("%s%s", PREFIX, json.dumps(document_of(event), separators=(",", ":")))


def document_of(event: DraftedStep) -> dict[str, Any]:
    """A step's decisions: of the batch, and of each of its first requests."""
    drafts, price, decisions = event.drafts, event.price, decisions_of(event)
    expected = expected_tokens(drafts.survival, drafts.neural, event.lengths)
    rows = []
    for row in range(min(len(event.requests), MAX_ROWS)):
        source, _, reason = decisions[row].partition("/")
        curve = drafts.survival[row, : drafts.length[row]].tolist()
        if decisions[row] == "none/policy" and curve:
            reason += f": likeliest token {curve[0]:.2g}, price {price:.2g}"
        rows.append(
            {
                "request": event.requests[row],
                "context_tokens": int(drafts.context[row]),
                "holds_neural": bool(event.holds_neural[row]),
                "source": source,
                "reason": reason,
                "neural_len": int(event.neural_len[row]),
                "ngram_len": int(event.ngram_len[row]),
                "expected_accepted": _short(expected[row, :SPLICE].sum()),
                "survival": [_short(chance) for chance in curve],
            }
        )
    return {
        "step": event.number,
        "proposes": event.proposes,
        "running": len(event.requests),
        "forwards": event.forwards,
        "decision_s": _short(event.decision_s),
        "price": _short(price),
        "requests": rows,
    }


def _short(value: float) -> float | None:
    """Four significant digits; JSON has no number for what is not finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
