"""Shows the engines' figures in the API server's `/metrics`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adaspec.vllm.metrics import (
    FIGURES,
    METRICS,
    POLICY_LABELS,
    PREFIX,
    announce_folder,
    read_counters,
)
from adaspec.vllm.patching import wrap

log = logging.getLogger("vllm.adaspec")

_REGISTERED = "__adaspec__"


def expose() -> None:
    """Make this process show the figures of the engines that it will start; never raises."""
    try:
        from prometheus_client import REGISTRY, multiprocess

        collector = Collector(announce_folder())
        if not getattr(REGISTRY, _REGISTERED, False):
            REGISTRY.register(collector)
            setattr(REGISTRY, _REGISTERED, True)

        # With several API servers, vLLM makes a new registry whenever it shows its figures, and
        # lets `MultiProcessCollector` fill it.
        def register_both(
            original: Any, multi_process: Any, registry: Any, *args: Any, **kwargs: Any
        ) -> None:
            original(multi_process, registry, *args, **kwargs)
            if registry is not None and registry is not REGISTRY:
                registry.register(collector)

        wrap(multiprocess.MultiProcessCollector, "__init__", register_both)
    except Exception as error:
        log.warning("adaspec: no figures of it in /metrics: %r", error)


class Collector:
    """A Prometheus collector that sums a folder of counters over all engines of a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def describe(self) -> list[Any]:
        """Describe nothing: the names are known without reading a file."""
        return []

    def collect(self) -> Iterator[Any]:
        """All current figures, summed over the engines."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        engines = list(read_counters(self.folder))
        if not engines:
            return
        totals = np.sum([figures for _, figures in engines], axis=0).tolist()
        value_of = dict(zip(FIGURES, totals, strict=True))
        for metric in METRICS:
            if metric.bounds:
                *buckets, total = (value_of[figure] for figure in metric.figures)
                bounds = [*(str(float(bound)) for bound in metric.bounds), "+Inf"]
                counts = list(zip(bounds, np.cumsum(buckets).tolist(), strict=True))
                yield HistogramMetricFamily(PREFIX + metric.name, metric.help, counts, total)
                continue
            kind = GaugeMetricFamily if metric.is_gauge else CounterMetricFamily
            family = kind(PREFIX + metric.name, metric.help, labels=metric.labels)
            for figure in metric.figures:
                family.add_metric(figure.split("/")[1:], value_of[figure])
            yield family
        policies = Counter(
            tuple(str(header.get(label, "")) for label in POLICY_LABELS) for header, _ in engines
        )
        info = GaugeMetricFamily(
            f"{PREFIX}policy_info", "1 for each engine's policy.", labels=POLICY_LABELS
        )
        for values, count in policies.items():
            info.add_metric(list(values), count)
        yield info
