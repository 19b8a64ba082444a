import pytest
from synthetic import synthesize
from tiny_training import TINY

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.options import Options
from adaspec.evaluate.selection import Selection
from adaspec.replay.contender import contender_of


@pytest.fixture(scope="session")
def requests_of():
    """Requests of the first `workloads` kinds, `count` of each, counts known up to `cap`."""

    def make(count=6, workloads=2, cap=8):
        return list(synthesize(0, TINY[:workloads], count, cap))

    return make


@pytest.fixture(scope="session")
def report_of():

    def make(requests, specs, cap=8, cost=H100_LLAMA_3_1_8B, **options):
        selection = Selection(tuple(requests), cap, ("traces",), "target", "drafter")
        defaults = {"engine": "sync", "concurrency": (1, 4), "orders": 1, "resamples": 3, "jobs": 1}
        named = [contender_of(spec) for spec in specs]
        return evaluate(selection, named, cost, Options(**(defaults | options)))

    return make
