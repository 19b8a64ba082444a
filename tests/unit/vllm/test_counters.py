"""Figures cross from the process that counts them to the one that shows them."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adaspec.vllm import metrics
from adaspec.vllm.metrics import FIGURES, FOLDER_VARIABLE, METRICS, Counters


def test_the_folder_is_named_once_to_all_processes(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    folder = metrics.announce_folder()
    assert metrics.announce_folder() == folder
    assert os.environ[FOLDER_VARIABLE] == str(folder)
    metrics._remove(str(folder), os.getpid() + 1)
    assert folder.is_dir()
    metrics._remove(str(folder), os.getpid())
    assert not folder.exists()


def announced():
    """The folder that another server, started as a command from here, counts in."""
    code = "from adaspec.vllm.metrics import announce_folder; print(announce_folder(), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def announce_into(queue):
    queue.put(str(metrics.announce_folder()))


def test_processes_of_one_server_count_in_one_folder_and_another_server_apart(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    folder = metrics.announce_folder()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    assert announced() != str(folder)
    assert os.environ[FOLDER_VARIABLE] == str(folder)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=announce_into, args=(queue,))
    worker.start()
    assert queue.get(timeout=60) == str(folder)
    worker.join()
    metrics._remove(str(folder), os.getpid())


def test_every_figure_is_exposed_and_documented(tmp_path):
    pytest.importorskip("prometheus_client")
    from adaspec.vllm.exposition import Collector

    assert len(set(FIGURES)) == len(FIGURES)
    made = Counters(tmp_path, {"policy": "p"})
    for number, figure in enumerate(FIGURES, 1):
        made.put(figure, 10.0**6 + number)
    families = list(Collector(tmp_path).collect())
    shown = [sample.value for family in families for sample in family.samples]
    for metric in METRICS:
        if not metric.bounds:  # buckets are shown as running sums
            assert all(made[figure] in shown for figure in metric.figures)
    documented = (Path(__file__).parents[3] / "docs" / "serve.md").read_text()
    for family in families:
        assert family.name in documented


def test_the_collector_sums_all_engines(tmp_path):
    client = pytest.importorskip("prometheus_client")
    from adaspec.vllm.exposition import Collector

    for policy in ("a", "a", "b"):
        made = Counters(tmp_path, {"policy": policy, "mode": "serve"})
        made.add("decisions/splice/trimmed", 2)
        made.add("drafted_tokens/neural", 5)
        made.add("draft_len/3", 4)
        made.add("draft_len/inf", 1)
        made.add("draft_len_sum", 112)
    registry = client.CollectorRegistry()
    registry.register(Collector(tmp_path))
    value = registry.get_sample_value
    assert value("adaspec:decisions_total", {"source": "splice", "reason": "trimmed"}) == 6
    assert value("adaspec:drafted_tokens_total", {"source": "neural"}) == 15
    assert value("adaspec:draft_len_bucket", {"le": "3.0"}) == 12
    assert value("adaspec:draft_len_count") == 15
    assert value("adaspec:draft_len_sum") == 336
    labels = {"version": "", "mode": "serve", "drafter": "", "why": ""}
    assert value("adaspec:policy_info", {"policy": "a", **labels}) == 2
    assert client.generate_latest(registry)
