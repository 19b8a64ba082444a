"""One tiny trace and one policy trained on it, shared by every test that only looks."""

import pytest
from synthetic import write_synthetic
from tiny_training import TINY, train


@pytest.fixture(scope="session")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("training") / "trace"
    write_synthetic(path, 0, TINY, requests_per_workload=24)
    return path


@pytest.fixture(scope="session")
def trained(trace, tmp_path_factory):
    """The product; its folder is to be left as it is."""
    return train(trace, tmp_path_factory.mktemp("policies") / "mine")
