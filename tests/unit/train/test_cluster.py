import os
import signal

import pytest
from refusals import refusal
from tiny_training import train

from adaspec.errors import TrainingError
from adaspec.train.trainer import Cluster

# Where much is written beside it, a thread of Dask waits longer for the disk than Dask allows.
pytestmark = [pytest.mark.slow, pytest.mark.thorough]

distributed = pytest.importorskip(
    "distributed", reason="Dask is not installed: pip install 'adaspec[dask]'"
)


@pytest.fixture
def address():
    """Where the scheduler of two worker processes answers."""
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        host="127.0.0.1",
        silence_logs=50,
    ) as cluster:
        yield cluster.scheduler_address


def test_a_policy_trained_on_a_cluster_is_the_one_trained_here_byte_for_byte(
    trace, trained, tmp_path, address
):
    heard = []
    with Cluster(address, heard.append) as cluster:
        train(trace, tmp_path / "mine", spread=cluster.spread)
    assert heard == []
    for file in trained.folder.iterdir():
        assert (tmp_path / "mine" / file.name).read_bytes() == file.read_bytes(), file.name


def test_an_address_where_nobody_answers_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("adaspec.train.trainer.CONNECT_S", 0.5)
    for unknown in ("tcp://127.0.0.1:9", "no address at all"):
        said = refusal(TrainingError, Cluster, unknown)
        assert "no Dask scheduler with workers answers" in said


class Deadly:
    """Stands in for a trainer, whose workers die of it."""

    def __init__(self):
        self.home = os.getpid()

    def portable(self):
        return self

    def answer(self, number):
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return number


def test_what_kills_every_worker_is_done_here_which_is_said_once(address):
    heard = []
    with Cluster(address, heard.append) as cluster:
        assert cluster.spread(Deadly().answer, range(3)) == [0, 1, 2]
        assert cluster.spread(Deadly().answer, range(2)) == [0, 1]
    assert len(heard) == 1
    assert "going on on this machine" in heard[0]
