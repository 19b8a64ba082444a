"""What the engine tests share: a few engines in each process that runs them."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "unit" / "vllm"))

from live_engine import KINDS, Engine, models_in, requests_of

HEADS = ("eagle", "eagle3", "mtp", "dflash", "dflash2", "dspark", "draft")
KEPT = 6
"""Engines that stay open: the one without speculation and those of `serve`, which come up all the
time, and one or two for a test of its own."""


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
    return models_in(request.config.cache.mkdir("engine"))


@pytest.fixture(scope="session")
def engines(models):
    """Makes engines, and keeps the last few: most tests share one of them."""
    opened = {}

    def make(speculative_config=None, **arguments):
        config = dict(speculative_config) if speculative_config else None
        if config and config.get("model") in HEADS:
            config["model"] = str(models / config["model"])
        key = repr((config, sorted(arguments.items())))
        if key in opened:
            opened[key] = opened.pop(key)
        else:
            while len(opened) >= KEPT:
                opened.pop(next(iter(opened))).close()
            opened[key] = Engine(models, config, **arguments)
        return opened[key]

    yield make
    for engine in opened.values():
        engine.close()


@pytest.fixture(scope="session")
def mode_path(tmp_path_factory):
    return tmp_path_factory.mktemp("control") / "mode"


@pytest.fixture(scope="session")
def runner():
    return "v1"


@pytest.fixture(scope="session")
def head():
    return "eagle"


@pytest.fixture(scope="session")
def serve(engines, mode_path):
    """An engine for each head that most tests share, by a policy and in a mode of their own."""
    from adaspec.vllm import scheduler

    scheduler.PERIOD_S = 0.0

    def put(head, policy=None, **changes):
        named = "hybrid-splice:4:20:3:2:5" if head else "fixed:ngram:8:2"
        config = {"method": "adaspec", "policy": named, "mode_file": str(mode_path)}
        config |= {"num_speculative_tokens": 24 if head else 128}
        if head:
            config["model"] = head
        mode_path.write_text("serve")
        engine = engines(config)
        engine.judged.clear()
        return engine, engine.put(policy or named, **changes)

    return put


@pytest.fixture(scope="session")
def prompts():
    """Twelve prompts of 50 to 130 tokens, in which lines repeat."""
    from tiny_models import document, ids_of

    return [ids_of(document(900 + at, 3 + at % 4)) for at in range(12)]


@pytest.fixture(scope="session")
def longest_output():
    return 128


@pytest.fixture(scope="session")
def truth(engines, prompts, longest_output):
    """What the target says without speculation: the first tokens of outputs computed once."""
    known = engines().greedy(prompts, longest_output)

    def outputs(tokens=48):
        assert tokens <= longest_output
        return [one[:tokens] for one in known]

    return outputs


@pytest.fixture(scope="session")
def said(engines, prompts):
    return {kind: engines().outputs(*requests_of(kind, prompts)) for kind in KINDS}
