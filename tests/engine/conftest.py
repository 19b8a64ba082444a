"""One process, one engine at a time: what the engine tests share."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from live_engine import Engine, models_in


def pytest_ignore_collect(collection_path):
    """Where vLLM is absent, only the file that says so is collected."""
    return not _has_vllm() and collection_path.name not in ("engine", "test_presence.py")


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
