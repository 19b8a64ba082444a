"""What the engine tests share: one engine at a time in each process that runs them."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from live_engine import Engine, models_in


def pytest_configure():
    """Where several processes run the tests, give the engines of each a core of their own.

    Left to themselves all would compute on every core, or be bound to the same one, and spend
    most of their time waiting for each other.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or not hasattr(os, "sched_getaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    core = cores[int(worker.removeprefix("gw")) % len(cores)]
    os.environ.update(OMP_NUM_THREADS="1", VLLM_CPU_OMP_THREADS_BIND=str(core))


def pytest_collection_modifyitems(items):
    """Files with slow tests first: begun last, they would leave the other processes idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_ignore_collect(collection_path, config):
    """Where vLLM is absent, only the file that says so is collected."""
    if collection_path.name == "v2":
        return not _has_vllm() or not _asks_for_v2(config)
    return not _has_vllm() and collection_path.name not in ("engine", "test_presence.py")


def _asks_for_v2(config):
    """Whether the tests on V2 are asked for by name: they need processes of their own."""
    return any("engine/v2" in str(argument) for argument in config.args)


def _has_vllm():
    # A folder of that name on the path, such as tests/unit/vllm, is found too, but has no origin.
    found = importlib.util.find_spec("vllm")
    return found is not None and found.origin is not None


@pytest.fixture(scope="session")
def models(request):
    """The folder of the tiny models; made once per version of the file that makes them."""
    return models_in(request.config.cache.mkdir("engine"))


@pytest.fixture(scope="session")
def engines(models):
    """Makes engines, keeps the last one, and closes it when another is asked for."""
    open_engines = {}

    def make(speculative_config=None, **arguments):
        config = dict(speculative_config) if speculative_config else None
        for name in ("eagle", "eagle3", "draft", "mtp"):
            if config and config.get("model") == name:
                config["model"] = str(models / name)
        key = repr((config, sorted(arguments.items())))
        if key not in open_engines:
            while open_engines:
                open_engines.popitem()[1].close()
            open_engines[key] = Engine(models, config, **arguments)
        return open_engines[key]

    yield make
    while open_engines:
        open_engines.popitem()[1].close()


@pytest.fixture(scope="session")
def prompts():
    """Twelve prompts of 50 to 130 tokens, in which lines repeat."""
    from tiny_models import document, ids_of

    return [ids_of(document(900 + at, 3 + at % 4)) for at in range(12)]


@pytest.fixture(scope="session")
def truth(engines, prompts):
    """What the target says without speculation, by what was asked; computed once each."""
    known = {}

    def outputs(tokens=48, asked=None, **more):
        asked = prompts if asked is None else asked
        key = repr((tokens, asked, sorted(more.items())))
        if key not in known:
            known[key] = engines().greedy(asked, tokens, **more)
        return known[key]

    return outputs
