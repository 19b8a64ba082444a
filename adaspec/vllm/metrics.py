"""A server's metrics: the table of them, what counts them, and `/metrics`.

The API server names a folder in its environment before it starts its engines (`announce_folder`),
and the first rank of each engine counts in files of its own there, which prometheus_client reads.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import multiprocessing
import os
import shutil
import tempfile
import uuid
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from math import inf
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.budget import NEURAL, NGRAM, SPLICE
from adaspec.policy.guard import ARMS, STATES
from adaspec.vllm.events import DraftedStep, VerifiedStep
from adaspec.vllm.options import MODES
from adaspec.vllm.patching import wrap
from adaspec.vllm.scheduler import GuardReport

log = logging.getLogger("vllm.adaspec")

PREFIX = "adaspec:"
FOLDER_VARIABLE = "ADASPEC_METRICS_DIR"
"""The environment variable that names the folder to every process of a server."""
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Upper bounds of the buckets for draft lengths."""
TIMES_S = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1.0)
"""Upper bounds of the buckets for decision times."""
DRAFT_SOURCES = ("ngram", "neural", "splice")
FORWARDS = ("draft", "keep_alive")
STAGES = ("plan", "settle", "batch", "ring", "request", "guard", "mode_file")
LOSSES = ("queue", "disk", "limit", "rejected", "incomplete", "closed")


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter in `/metrics`; a histogram if it has bounds, or a gauge."""

    name: str
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    """The values of the label."""
    bounds: tuple[float, ...] = ()
    is_gauge: bool = False

    @property
    def kind(self) -> str:
        """How prometheus_client's files call it; gauges are summed over engines."""
        return "histogram" if self.bounds else "gauge_sum" if self.is_gauge else "counter"

    @property
    def samples(self) -> dict[str, tuple[str, dict[str, str]]]:
        """By the name of each figure that is counted: its sample, and the value of its label."""
        if self.bounds:
            return {
                f"{self.name}/{bound}": (f"{self.name}_bucket", {"le": str(float(bound))})
                for bound in (*self.bounds, inf)
            } | {f"{self.name}_sum": (f"{self.name}_sum", {})}
        sample = self.name if self.is_gauge else f"{self.name}_total"
        if not self.label:
            return {self.name: (sample, {})}
        return {f"{self.name}/{value}": (sample, {self.label: value}) for value in self.values}


_BY_SOURCE = ("source", DRAFT_SOURCES)
METRICS = (
    Metric("drafted_tokens", "Drafted tokens that the target verified.", *_BY_SOURCE),
    Metric("accepted_tokens", "Of these, tokens that the target took.", *_BY_SOURCE),
    Metric("expected_tokens", "Of the drafted, tokens expected to be accepted.", *_BY_SOURCE),
    Metric("draft_len", "Tokens proposed per request and step.", bounds=LENGTHS),
    Metric("decision_seconds", "Time that deciding took per step.", bounds=TIMES_S),
    Metric("bounded_steps", "Steps that max_step_ms let draft or verify less."),
    Metric("drafter_forwards", "Forwards of the neural drafter.", "kind", FORWARDS),
    Metric("mode", "Engines that serve in this mode now.", "mode", MODES, is_gauge=True),
    Metric("guard_steps", "Steps by what the guard made of them.", "state", STATES),
    Metric("guard_tokens_per_second", "Tokens per second by arm now.", "arm", ARMS, is_gauge=True),
    Metric("faults", "Failures that were lived with, by stage.", "stage", STAGES),
    Metric("policy_switched_off", "Engines whose policy fails and is off.", is_gauge=True),
    Metric("dropped_rows", "Trace rows not written, by reason.", "reason", LOSSES),
)
POLICY_LABELS = ("policy", "drafter", "baseline")
"""The labels of `policy_info`."""
FIGURES = tuple(figure for metric in METRICS for figure in metric.samples)


class Counters:
    """One engine's figures, and an observer that counts; each is counted by one thread only."""

    def __init__(self, folder: Path | None, info: dict[str, Any]) -> None:
        """Count in new files of the folder, or only in memory if there is no folder.

        `info` has values of the `POLICY_LABELS`.
        """
        self._figures = dict.fromkeys(FIGURES, 0.0)
        self._shown: dict[str, tuple[Any, str]] = {}
        """Of each figure, the file that shows it and the key there."""
        if folder is not None:
            # Serving without visible figures is better than no serving.
            with contextlib.suppress(OSError):
                self._shown = _files_of(folder, info)

    def add(self, name: str, count: float = 1.0) -> None:
        """Add to one figure."""
        self.put(name, self._figures[name] + count)

    def observe(
        self, histogram: str, bounds: tuple[float, ...], value: float, count: int = 1
    ) -> None:
        """Count a value so often in the buckets of a histogram, and add it to its sum."""
        self.add(f"{histogram}/{(*bounds, inf)[bisect_left(bounds, value)]}", count)
        self.add(f"{histogram}_sum", count * value)

    def put(self, name: str, value: float) -> None:
        """Set one figure."""
        self._figures[name] = value
        if self._shown:
            file, key = self._shown[name]
            file.write_value(key, value, 0.0)

    def __getitem__(self, name: str) -> float:
        return self._figures[name]

    def proposed(self, event: DraftedStep) -> None:
        """Count the draft lengths and the decision time."""
        self.observe("decision_seconds", TIMES_S, event.decision_s)
        self.add("bounded_steps", event.bounded)
        for length, count in Counter(event.verified.tolist()).items():
            self.observe("draft_len", LENGTHS, length, count)

    def verified(self, event: VerifiedStep) -> None:
        """Count the tokens that were verified, accepted and expected to be accepted."""
        drafted, expected = event.drafted, expected_of(event)
        neural, copied = event.neural_drafted > 0, drafted > event.neural_drafted
        of_source = copied & ~neural, neural & ~copied, neural & copied
        for source, rows in zip(DRAFT_SOURCES, of_source, strict=True):
            if rows.any():
                self.add(f"drafted_tokens/{source}", float(drafted[rows].sum()))
                self.add(f"accepted_tokens/{source}", float(event.accepted[rows].sum()))
                self.add(f"expected_tokens/{source}", float(expected[rows].sum()))

    def forwards(self, drafting: int, keep_alive: int) -> None:
        """Count forwards of the drafter."""
        self.add("drafter_forwards/draft", drafting)
        self.add("drafter_forwards/keep_alive", keep_alive)

    def switched(self, mode: str) -> None:
        """Note the mode that begins."""
        for each in MODES:
            self.put(f"mode/{each}", float(each == mode))

    def guarded(self, guarded: GuardReport) -> None:
        """Count a step by the guard's state, and note what the guard knows."""
        self.add(f"guard_steps/{guarded.state}")
        for arm in ARMS:  # 0: not known at this load
            self.put(f"guard_tokens_per_second/{arm}", guarded.rates.get(arm, 0.0))

    def fault(self, stage: str, switched_off: bool) -> None:
        """Count a fault, and note whether the policy is off."""
        self.add(f"faults/{stage}")
        self.put("policy_switched_off", float(switched_off))


def _files_of(folder: Path, info: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """New files in which every figure is 0; of each figure, its file and its key there."""
    client: Any = importlib.import_module("prometheus_client.mmap_dict")
    engine = uuid.uuid4().hex
    paths = {kind: folder / f"{kind}_{engine}" for kind in ("counter", "gauge_sum", "histogram")}
    files = {kind: client.MmapedDict(str(path)) for kind, path in paths.items()}
    shown: dict[str, tuple[Any, str]] = {}
    for metric in METRICS:
        file, name = files[metric.kind], PREFIX + metric.name
        for figure, (sample, labels) in metric.samples.items():
            key = client.mmap_key(name, PREFIX + sample, [*labels], [*labels.values()], metric.help)
            file.write_value(key, 0.0, 0.0)
            shown[figure] = file, key
    name, values = f"{PREFIX}policy_info", [info.get(label) or "" for label in POLICY_LABELS]
    key = client.mmap_key(name, name, POLICY_LABELS, values, "1 for each engine's policy.")
    files["gauge_sum"].write_value(key, 1.0, 0.0)
    for path in paths.values():  # from now on they are read
        path.rename(path.with_suffix(".db"))
    return shown


def expected_of(event: VerifiedStep) -> NDArray[np.float64]:
    """How many of each row's verified tokens its model expected the target to accept.

    Survival has been corrected by the sources' factors, which are taken out again: after a
    correction, even a model that knows nothing of the traffic expects what comes.
    """
    drafts, settings = event.step.drafts, event.step.settings
    token, neural = np.arange(drafts.survival.shape[1]), drafts.neural[:, None]
    corrected = np.where(neural > 0, settings[NEURAL], settings[NGRAM])
    corrected = corrected * np.where((neural > 0) & (token >= neural), settings[SPLICE], 1.0)
    is_verified = token < event.drafted[:, None]
    expected = np.where(is_verified, drafts.survival / corrected, 0.0).sum(axis=1)
    return np.asarray(expected)


@functools.cache
def expose() -> None:
    """Make this process show the figures of the engines that it will start; never raises."""
    try:
        from prometheus_client import REGISTRY

        client: Any = importlib.import_module("prometheus_client.multiprocess")
        collector = client.MultiProcessCollector(None, str(announce_folder()))
        REGISTRY.register(collector)

        # With several API servers, vLLM makes a new registry whenever it shows its figures, and
        # lets a `MultiProcessCollector` of its own fill it.
        def register_both(
            original: Any, multi_process: Any, registry: Any, *args: Any, **kwargs: Any
        ) -> None:
            original(multi_process, registry, *args, **kwargs)
            if registry is not None and registry is not REGISTRY:
                registry.register(collector)

        wrap(client.MultiProcessCollector, "__init__", register_both)
    except Exception as error:
        log.warning("adaspec: no figures of it in /metrics: %r", error)


def announce_folder() -> Path:
    """The folder of this server's counters; its first process makes one and names it to the others.

    A server is one process and those that `multiprocessing` starts for it. A program that runs
    engines and then starts a server as a command also hands its environment down. The figures of
    that server are separate, so it makes a new folder.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named and multiprocessing.parent_process() is not None:
        return Path(named)
    folder = tempfile.mkdtemp(prefix="adaspec-metrics-")
    os.environ[FOLDER_VARIABLE] = folder
    # Only this process removes the folder as it ends, and no child that was forked from it.
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-1)
    return Path(folder)
