"""Engines on model runner V2, with async scheduling, in Triton's interpreter.

These tests have processes of their own: `pytest tests/engine/v2`.
"""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parents[1] / "unit" / "policy"))

import interpreter  # noqa: E402
from tiny_models import document, ids_of  # noqa: E402
from wandering import CAP, written_policy  # noqa: E402

from adaspec.cost.load import DEFAULT  # noqa: E402


@pytest.fixture(scope="session")
def prompts():
    """Six prompts in which lines repeat: the interpreter takes its time."""
    return [ids_of(document(900 + at, 3 + at % 3)) for at in range(6)]


@pytest.fixture(scope="session")
def longest_output():
    return 64


@pytest.fixture(scope="session")
def served(engines, tmp_path_factory, mode_path):
    """Makes an engine that adaspec serves on V2; its mode file says `serve`."""
    from adaspec.vllm import scheduler

    scheduler.PERIOD_S = 0.0
    policy = written_policy(tmp_path_factory.mktemp("policy") / "random")

    def make(head, trims=True, config=None, **arguments):
        interpreter.Trimming.possible = trims
        mode_path.write_text("serve")
        options = {"method": "adaspec", "policy": policy, "mode_file": str(mode_path)}
        options["cost"] = DEFAULT  # so nothing is measured as it starts
        options |= {"num_speculative_tokens": CAP, **(config or {})}
        if head is not None:
            options["model"] = head
        # An engine that trims and one that does not are not the same one.
        arguments.setdefault("max_num_seqs", 8 if trims else 7)
        engine = engines(options, async_scheduling=True, **arguments)
        assert type(engine.runner.speculator).__name__.startswith("AdaSpec")
        assert engine.runner.adaspec_session.trims == trims
        engine.judged.clear()
        # What one test changes of a session is nothing to the next one.
        engine.first = engine.first or engine.runner.adaspec_session
        engine.runner.adaspec_session = engine.first
        return engine

    return make


@pytest.fixture(scope="session")
def runner():
    return "v2"


@pytest.fixture(scope="session")
def head():
    return "eagle3"


@pytest.fixture(scope="session")
def serve(served):

    def put(head, policy=None, **changes):
        engine = served(head)
        return engine, engine.session if policy is None else engine.put(policy, **changes)

    return put
