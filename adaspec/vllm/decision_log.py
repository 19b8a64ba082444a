"""Logs what was decided in a few steps per second and why, a line of JSON for each step."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable
from typing import Any

from adaspec.vllm.events import DraftedStep, Observer, decisions_of, source_of

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
    count = min(len(event.requests), MAX_ROWS)
    price, reasons = event.reasons(count)
    columns = (
        event.context_tokens[:count].tolist(),
        event.holds_neural[:count].tolist(),
        event.neural_len[:count].tolist(),
        event.ngram_len[:count].tolist(),
    )
    rows = []
    decisions = decisions_of(event)
    for row, (context, holds, neural, ngram) in enumerate(zip(*columns, strict=True)):
        facts: dict[str, Any] = {
            "request": event.requests[row],
            "context_tokens": context,
            "holds_neural": holds,
            "source": source_of(neural, ngram),
            "reason": _reason(decisions[row], price, reasons[row]),
            "neural_len": neural,
            "ngram_len": ngram,
        }
        facts |= {name: _shortened(value) for name, value in reasons[row].items()}
        rows.append(facts)
    return {
        "step": event.number,
        "proposes": event.proposes,
        "running": len(event.requests),
        "forwards": event.forwards,
        "decision_s": _short(event.decision_s),
        "price": _short(price),
        "requests": rows,
    }


def _reason(decision: str, price: float, facts: dict[str, Any]) -> str:
    """The reason of a decision, as in `adaspec:decisions_total`, and what the policy weighed."""
    reason = decision.partition("/")[2]
    curves = [facts[name] for name in facts if name.startswith("survival") and len(facts[name])]
    if decision != "none/policy" or not curves:
        return reason
    likeliest = max(float(curve[0]) for curve in curves)
    return f"{reason}: likeliest token {likeliest:.2g}, price {price:.2g}"


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, Iterable) else _short(value)


def _short(value: float) -> float | None:
    """Four significant digits; JSON has no number for what is not finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
