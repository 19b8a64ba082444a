"""Training on a real Dask cluster of two worker processes on this machine."""

import os
import signal
import time

import pytest
from refusals import refusal
from tiny_training import train

from adaspec.errors import TrainingError
from adaspec.train.cluster import Cluster

# Where much is written beside it, a thread of Dask waits longer for the disk than Dask allows.
pytestmark = [pytest.mark.slow, pytest.mark.thorough]

distributed = pytest.importorskip(
    "distributed", reason="Dask is not installed: pip install 'adaspec[dask]'"
)


def two_processes():
    return distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        host="127.0.0.1",
        silence_logs=50,
    )


def test_a_policy_trained_on_a_cluster_is_the_one_trained_here_byte_for_byte(
    trace, trained, tmp_path
):
    heard = []
    with two_processes() as found, Cluster(found.scheduler_address, heard.append) as cluster:
        train(trace, tmp_path / "mine", spread=cluster.spread)
    assert heard == []
    for file in trained.folder.iterdir():
        assert (tmp_path / "mine" / file.name).read_bytes() == file.read_bytes(), file.name


def test_an_address_where_nobody_answers_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("adaspec.train.cluster.CONNECT_S", 0.5)
    for address in ("tcp://127.0.0.1:9", "no address at all"):
        said = refusal(TrainingError, Cluster, address)
        assert "no Dask scheduler with workers answers" in said


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


def test_a_killed_worker_costs_time_and_what_kills_all_is_done_here_and_said_once():
    heard = []
    with two_processes() as found, Cluster(found.scheduler_address, heard.append) as cluster:
        with distributed.Client(found.scheduler_address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            spared = list(client.run(os.getpid).values())[1:]
        # The worker that is started in place of the killed one dies, too.
        assert cluster.spread(Deadly(spared).answer, range(6)) == list(range(6))
        assert heard == []
        fatal = Deadly([os.getpid()])
        assert cluster.spread(fatal.answer, range(3)) == [0, 1, 2]
        assert cluster.spread(fatal.answer, range(2)) == [0, 1]
    assert len(heard) == 1
    assert "going on on this machine" in heard[0]
