"""Figures cross from the process that counts them to the one that shows them."""

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

from adaspec.vllm import metrics
from adaspec.vllm.metrics import FIGURES, FOLDER_VARIABLE, INDEX, Counters, read_counters


def count(folder, times):
    made = Counters(folder, {"policy": "p"})
    for _ in range(times):
        made.add("steps")
    made.lost("disk", 3)


def test_another_process_counts(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=count, args=(tmp_path, times)) for times in (5, 7)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = list(read_counters(tmp_path))
    assert [about for about, _ in found] == [{"policy": "p"}] * 2
    figures = np.sum([each for _, each in found], axis=0)
    assert figures[INDEX["steps"]] == 12
    assert figures[INDEX["dropped_rows/disk"]] == 6


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


@pytest.fixture
def own_folder(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    folder = metrics.announce_folder()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    yield str(folder)
    metrics._remove(str(folder), os.getpid())


def test_a_server_started_as_a_command_counts_apart_from_whoever_started_it(own_folder):
    assert announced() != own_folder
    assert os.environ[FOLDER_VARIABLE] == own_folder


def test_processes_of_one_server_count_in_one_folder(own_folder):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=announce_into, args=(queue,))
    worker.start()
    assert queue.get(timeout=60) == own_folder
    worker.join()


def test_a_folder_that_an_operator_names_is_used_by_every_server(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert announced() == str(tmp_path)


def test_without_a_folder_figures_are_counted_for_nobody():
    made = Counters(None, {})
    made.add("steps", 2)
    assert made["steps"] == 2


def test_what_is_no_file_of_counters_is_passed_over(tmp_path):
    (tmp_path / "x.counters").write_text("{}")
    assert list(read_counters(tmp_path)) == []


def test_every_figure_has_a_place_of_its_own():
    assert len(set(FIGURES)) == len(FIGURES)


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
