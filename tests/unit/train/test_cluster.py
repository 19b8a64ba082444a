"""Training on a real Dask cluster of two worker processes on this machine."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tiny_training import train

from adaspec.errors import TrainingError
from adaspec.train.cluster import Cluster
from adaspec.train.heads import Settings, boost

pytestmark = pytest.mark.slow

distributed = pytest.importorskip(
    "distributed", reason="Dask is not installed: pip install 'adaspec[dask]'"
)
pytest.importorskip("dask.dataframe", reason="Dask's data frames are not installed")

SETTINGS = Settings(rounds=30, threads=1)
NAMES = tuple(f"feature_{at}" for at in range(6))


def two_processes():
    return distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        host="127.0.0.1",
        silence_logs=50,
    )


@pytest.fixture(scope="module")
def two_workers():
    with two_processes() as found:
        yield found.scheduler_address


@pytest.fixture
def heard():
    return []


def examples(seed, count):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, len(NAMES))).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    score = np.nan_to_num(x[:, 0]) + np.nan_to_num(x[:, 1] * x[:, 2])
    y = (rng.random(count) < 1 / (1 + np.exp(-2 * score))).astype(np.float64)
    return x, y, rng.uniform(0.5, 2, count)


@pytest.fixture
def small_fits_sent(monkeypatch):
    monkeypatch.setattr("adaspec.train.cluster.MIN_EXAMPLES", 1000)


@pytest.mark.usefixtures("small_fits_sent")
def test_trees_grown_by_all_workers_foretell_as_well_as_trees_grown_here(two_workers, heard):
    x, y, weight = examples(0, 6000)
    unseen, truth, _ = examples(1, 4000)
    here = boost(x, y, weight, "binary", NAMES, SETTINGS)
    with Cluster(two_workers, heard.append) as cluster:
        settings = Settings(rounds=30, threads=1, fitter=cluster.boost)
        there = boost(x, y, weight, "binary", NAMES, settings)
        smooth = boost(x, np.nan_to_num(x[:, 0]) + 1.0, weight, "regression", NAMES, settings)
        # A small fit is not worth the way.
        parameters = settings.parameters("binary", 500)
        assert cluster.boost(x[:500], y[:500], weight[:500], NAMES, parameters, 30) is None
    assert heard == []
    assert there.feature_name() == list(NAMES)
    assert there.num_trees() == here.num_trees()
    aucs = [roc_auc_score(truth, booster.predict(unseen)) for booster in (here, there)]
    assert aucs[1] == pytest.approx(aucs[0], abs=0.01)
    assert np.corrcoef(smooth.predict(unseen), np.nan_to_num(unseen[:, 0]))[0, 1] > 0.95


def test_a_policy_trained_on_a_cluster_is_the_one_trained_here_byte_for_byte(
    two_workers, heard, trace, trained, tmp_path
):
    with Cluster(two_workers, heard.append) as cluster:
        train(trace, tmp_path / "mine", cluster=cluster)
    assert heard == []
    for file in trained.folder.iterdir():
        assert (tmp_path / "mine" / file.name).read_bytes() == file.read_bytes(), file.name


def test_an_address_where_nobody_answers_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("adaspec.train.cluster.CONNECT_S", 0.5)
    for address in ("tcp://127.0.0.1:9", "no address at all"):
        with pytest.raises(TrainingError, match="no Dask scheduler answers") as error:
            Cluster(address)
        assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def mortal_workers():
    """Two workers for the tests that kill some; a killed one is started again."""
    with two_processes() as found:
        yield found


def pids_of(found):
    with distributed.Client(found.scheduler_address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        return client.run(os.getpid)


class Deadly:
    """Stands in for a trainer; whoever is asked, but on the processes spared, dies of it."""

    def __init__(self, spared):
        self.spared = spared

    def portable(self):
        return self

    def answer(self, number):
        if os.getpid() not in self.spared:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)
        return number


def test_a_killed_worker_costs_time_and_what_kills_all_is_done_here_and_said_once(
    mortal_workers, heard
):
    spared = list(pids_of(mortal_workers).values())[1:]
    with Cluster(mortal_workers.scheduler_address, heard.append) as cluster:
        # The worker that is started in place of the killed one dies, too.
        assert cluster.spread(Deadly(spared).answer, range(6)) == list(range(6))
        assert heard == []
        fatal = Deadly([os.getpid()])
        assert cluster.spread(fatal.answer, range(3)) == [0, 1, 2]
        assert cluster.spread(fatal.answer, range(2)) == [0, 1]
    assert len(heard) == 1
    assert "going on on this machine" in heard[0]


def kill_as_trees_grow(found, pids, ended):
    """Kill a worker as soon as LightGBM's part is running on it.

    That may be one worker of two: a busy scheduler gives both halves of the examples to one.
    """
    with distributed.Client(found.scheduler_address, set_as_default=False) as client:
        while not ended.wait(0.05):
            for worker, keys in client.processing().items():
                if any("_train_part" in str(key) for key in keys):
                    os.kill(pids[worker], signal.SIGKILL)
                    return


@pytest.mark.usefixtures("small_fits_sent")
def test_a_worker_killed_while_trees_grow_is_no_loss_of_trees(mortal_workers, heard):
    x, y, weight = examples(0, 60_000)
    pids = pids_of(mortal_workers)
    with Cluster(mortal_workers.scheduler_address, heard.append) as cluster:
        settings = Settings(rounds=2000, leaves=255, threads=1, fitter=cluster.boost)
        ended = threading.Event()
        killer = threading.Thread(target=kill_as_trees_grow, args=(mortal_workers, pids, ended))
        killer.start()
        quick = Settings(rounds=5, threads=1)
        parameters = settings.parameters("binary", len(y))
        try:
            grown = cluster.boost(x, y, weight, NAMES, parameters, settings.rounds)
        finally:
            ended.set()
            killer.join()
        assert grown is None
        assert boost(x, y, weight, "binary", NAMES, quick).num_trees() == 5
    assert len(heard) == 1
