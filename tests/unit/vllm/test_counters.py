"""Figures cross from the process that counts them to the one that shows them."""

import multiprocessing
import os
import subprocess
import sys

import pytest

from adaspec.vllm import exposition
from adaspec.vllm.exposition import announce_folder
from adaspec.vllm.metrics import FIGURES, FOLDER_VARIABLE, METRICS, PREFIX, Counters

client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
multiprocess = pytest.importorskip("prometheus_client.multiprocess")


def announce_into(queue):
    queue.put(str(announce_folder()))


def test_processes_of_one_server_count_in_one_folder_and_another_server_apart(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    folder = announce_folder()
    code = "from adaspec.vllm.exposition import announce_folder; print(announce_folder(), end='')"
    server = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert server.stdout != str(folder)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=announce_into, args=(queue,))
    worker.start()
    assert queue.get(timeout=60) == str(folder)
    worker.join()
    exposition._remove(str(folder), os.getpid() + 1)
    assert folder.is_dir()
    exposition._remove(str(folder), os.getpid())
    assert not folder.exists()


def shown_in(folder):
    """The value of every sample by name and labels, and the text that a server shows."""
    registry = client.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(folder))
    return registry.get_sample_value, client.generate_latest(registry).decode()


def test_every_figure_is_shown(tmp_path):
    assert len(set(FIGURES)) == len(FIGURES)
    made = Counters(tmp_path, {"policy": "p"})
    for number, figure in enumerate(FIGURES, 1):
        made.put(figure, 10.0**6 + number)
    value, text = shown_in(tmp_path)
    for metric in METRICS:
        kind = metric.kind.removesuffix("_sum")
        name = f"{PREFIX}{metric.name}{'_total' if kind == 'counter' else ''}"
        assert f"# HELP {name} {metric.help}\n# TYPE {name} {kind}\n" in text
        for figure, (sample, labels) in metric.samples.items():
            if not sample.endswith("_bucket"):  # buckets are shown as running sums
                assert value(PREFIX + sample, labels) == made[figure]


def test_what_is_shown_is_the_sum_of_all_engines(tmp_path):
    for policy in ("a", "a", "b"):
        made = Counters(tmp_path, {"policy": policy})
        made.add("accepted_tokens/splice", 2)
        made.put("mode/off", 1.0)
        for length, count in ((3, 4), (100, 1)):
            made.observe("draft_len", (1, 3, 64), length, count)
    value, _ = shown_in(tmp_path)
    assert value("adaspec:accepted_tokens_total", {"source": "splice"}) == 6
    assert value("adaspec:mode", {"mode": "off"}) == 3
    assert value("adaspec:draft_len_bucket", {"le": "3.0"}) == 12
    assert value("adaspec:draft_len_count") == 15
    assert value("adaspec:draft_len_sum") == 336
    assert value("adaspec:policy_info", {"policy": "a", "drafter": ""}) == 2
