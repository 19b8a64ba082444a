"""Shows every engine's figures in the API server's own `/metrics`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.vllm import counters
from adaspec.vllm.counters import PLACE, announce_folder, read_counters

log = logging.getLogger("vllm.adaspec")

PREFIX = "adaspec:"
_MARK = "__adaspec__"


def expose() -> None:
    """Have this process show the figures of the engines that it will start; never raises."""
    try:
        folder = announce_folder()
        _register(folder)
    except Exception as error:
        log.warning("adaspec: no figures of it in /metrics: %r", error)


def _register(folder: Path) -> None:
    from prometheus_client import REGISTRY, multiprocess

    collector = Collector(folder)
    if not getattr(REGISTRY, _MARK, False):
        REGISTRY.register(collector)
        setattr(REGISTRY, _MARK, True)
    # With several API servers vLLM makes a registry anew whenever it shows its figures, and has
    # this class fill it.
    holder: Any = multiprocess.MultiProcessCollector
    original = holder.__init__
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def patched(self: Any, registry: Any, *args: Any, **kwargs: Any) -> None:
        original(self, registry, *args, **kwargs)
        if registry is not None and registry is not REGISTRY:
            registry.register(collector)

    setattr(patched, _MARK, True)
    holder.__init__ = patched


class Collector:
    """A Prometheus collector over a folder of counters: sums over all engines of a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def describe(self) -> list[Any]:
        """Nothing: names are known without reading a file."""
        return []

    def collect(self) -> Iterator[Any]:
        """All figures as they are now."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        engines = list(read_counters(self.folder))
        if not engines:
            return
        figures: NDArray[np.float64] = np.sum([found for _, found in engines], axis=0)

        def of(name: str) -> float:
            return float(figures[PLACE[name]])

        for name, text, label, kinds in _COUNTERS:
            family = CounterMetricFamily(PREFIX + name, text, labels=[label] if label else [])
            for kind in kinds:
                family.add_metric([kind] if label else [], of(f"{_FIGURE[name]}/{kind}"))
            yield family
        decisions = CounterMetricFamily(
            f"{PREFIX}decisions",
            "Decisions on one request in one step, by who drafts and why.",
            labels=["source", "reason"],
        )
        for source, reasons in counters.REASONS.items():
            for reason in reasons:
                decisions.add_metric([source, reason], of(f"decisions/{source}/{reason}"))
        yield decisions
        for name, figure, text in _PLAIN:
            plain = CounterMetricFamily(PREFIX + name, text)
            plain.add_metric([], of(figure))
            yield plain
        for name, figure, bounds, text in _HISTOGRAMS:
            histogram = HistogramMetricFamily(PREFIX + name, text)
            counts = np.cumsum([of(f"{figure}/{bound}") for bound in (*bounds, "inf")])
            names = [*(str(float(bound)) for bound in bounds), "+Inf"]
            histogram.add_metric(
                [], list(zip(names, counts.tolist(), strict=True)), of(f"{figure}_sum")
            )
            yield histogram
        policy = GaugeMetricFamily(
            f"{PREFIX}policy_info", "1 for each engine's policy.", labels=list(_ABOUT)
        )
        off = GaugeMetricFamily(
            f"{PREFIX}policy_switched_off",
            "Engines whose policy failed too often and serves no more.",
        )
        engines_by: dict[tuple[str, ...], int] = {}
        for about, _ in engines:
            key = tuple(str(about.get(name, "")) for name in _ABOUT)
            engines_by[key] = engines_by.get(key, 0) + 1
        for key, count in engines_by.items():
            policy.add_metric(list(key), count)
        off.add_metric([], of("switched_off"))
        yield policy
        yield off


_ABOUT = ("policy", "version", "mode", "drafter", "why")
_COUNTERS = (
    ("drafted_tokens", "Tokens verified.", "source", counters.DRAFTERS),
    ("accepted_tokens", "Of these, tokens that the target took.", "source", counters.DRAFTERS),
    (
        "expected_accepted_tokens",
        "Tokens that the policy expected to be accepted of its drafts (neural part of a splice).",
        "source",
        counters.DRAFTERS,
    ),
    (
        "realised_accepted_tokens",
        "Tokens accepted of those same drafts: hold it against expected_accepted_tokens.",
        "source",
        counters.DRAFTERS,
    ),
    (
        "clocked_steps",
        "Steps that did nothing but verify, timed: without a draft, with up to "
        f"{counters.SHORT} drafted tokens per request, with more.",
        "drafted",
        counters.DRAFTED,
    ),
    ("clocked_step_seconds", "What these took.", "drafted", counters.DRAFTED),
    (
        "clocked_step_modelled_seconds",
        "What the cost model says of these: hold it against clocked_step_seconds.",
        "drafted",
        counters.DRAFTED,
    ),
    ("drafter_forwards", "Forwards of the neural drafter.", "kind", counters.FORWARDS),
    ("faults", "Failures that were lived with, by stage.", "stage", counters.STAGES),
    ("dropped_rows", "Trace rows not written, by reason.", "reason", counters.LOSSES),
)
_FIGURE = {
    "drafted_tokens": "drafted",
    "accepted_tokens": "accepted",
    "expected_accepted_tokens": "expected",
    "realised_accepted_tokens": "realised",
    "clocked_steps": "clocked",
    "clocked_step_seconds": "clocked_s",
    "clocked_step_modelled_seconds": "clocked_modelled_s",
    "drafter_forwards": "forwards",
    "faults": "faults",
    "dropped_rows": "dropped",
}
_PLAIN = (
    ("steps", "steps", "Engine steps in which something was decided."),
    ("modelled_step_seconds", "modelled_s", "Step times by the cost model that decides."),
    ("unverified_drafts", "unverified", "Drafts that the scheduler dropped or replaced."),
)
_HISTOGRAMS = (
    ("draft_len", "length", counters.LENGTHS, "Tokens proposed per request and step."),
    ("decision_seconds", "time", counters.TIMES_S, "Time that deciding took per step."),
)
