import multiprocessing
from pathlib import Path

import pytest
from checkout import run_python

from adaspec.vllm import metrics

client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
multiprocess = pytest.importorskip("prometheus_client.multiprocess")


OTHER_SERVER = """
import os
from adaspec.vllm.metrics import announce_folder
folder = announce_folder()
if child := os.fork():
    os.waitpid(child, 0)
    print(folder, folder.is_dir(), end="")
"""
"""Says its folder, which a child that was forked and has ended leaves there."""


def test_processes_of_one_server_count_in_one_folder_and_another_server_apart(monkeypatch):
    monkeypatch.delenv(metrics.FOLDER_VARIABLE, raising=False)
    folder = metrics.announce_folder()
    other, was_there = run_python("-c", OTHER_SERVER).stdout.split()
    assert was_there == "True"
    assert other != str(folder) and not Path(other).exists()
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        assert workers.apply_async(metrics.announce_folder).get(timeout=60) == folder
    assert folder.is_dir()


def test_every_figure_is_shown_as_the_sum_of_all_engines(tmp_path):
    assert len(set(metrics.FIGURES)) == len(metrics.FIGURES)
    for policy in ("a", "a", "b"):
        made = metrics.Counters(tmp_path, {"policy": policy})
        for number, figure in enumerate(metrics.FIGURES, 1):
            made.put(figure, 10.0**6 + number)
        for length, count in ((3, 4), (100, 1)):
            made.observe("draft_len", metrics.LENGTHS, length, count)
    registry = client.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(tmp_path))
    value, text = registry.get_sample_value, client.generate_latest(registry).decode()
    for metric in metrics.METRICS:
        kind = metric.kind.removesuffix("_sum")
        name = f"{metrics.PREFIX}{metric.name}{'_total' if kind == 'counter' else ''}"
        assert f"# HELP {name} {metric.help}\n# TYPE {name} {kind}\n" in text
        below = 0.0
        for figure, (sample, labels) in metric.samples.items():
            expected = 3 * made[figure]
            if sample.endswith("_bucket"):  # buckets are shown as running sums
                expected = below = below + expected
                labels = {"le": labels["le"].replace("inf", "+Inf")}
            assert value(metrics.PREFIX + sample, labels) == expected
    assert made["draft_len/3"] - made["draft_len/2"] == 4 + 1
    assert value("adaspec:policy_info", {"policy": "a", "drafter": "", "baseline": ""}) == 2
