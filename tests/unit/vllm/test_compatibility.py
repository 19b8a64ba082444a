"""Whatever of vLLM is patched, called or read is looked at before anything is served."""

import types

import pytest
from refusals import refusal

from adaspec.errors import ServingError
from adaspec.vllm import compatibility
from adaspec.vllm.compatibility import check_runner
from adaspec.vllm.patching import RUNNER_V2
from adaspec.vllm.plugin import PATCHES


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """A vLLM of which adaspec needs no function, and one attribute of a runner and a drafter."""
    monkeypatch.setattr(compatibility, "installed_version", lambda: "0.40.0")
    monkeypatch.setattr(compatibility, "RUNNER_ATTRIBUTES", ("input_batch.req_ids",))
    monkeypatch.setattr(compatibility, "DRAFTER_ATTRIBUTES", ("max_model_len",))


RUNNER = types.SimpleNamespace(input_batch=types.SimpleNamespace(req_ids=[]))
DRAFTER = types.SimpleNamespace(max_model_len=100)


def test_whatever_is_patched_is_looked_at():
    looked_at = {
        *compatibility.FUNCTIONS_V1,
        *compatibility.FUNCTIONS_V2,
        *compatibility.FUNCTIONS_OF_SERVERS,
    }
    patched = {f"{module}:{name}" for module, names in PATCHES.items() for name in names}
    manager = f"{RUNNER_V2}:maybe_create_adaptive_verification_manager"
    assert manager in patched  # it is looked at where it is defined
    assert patched - looked_at == {manager}


@pytest.mark.parametrize(
    ("functions", "runner", "drafter", "says"),
    [
        ({"json:dumps": ("obj", "indent"), "json:JSONEncoder.encode": ()}, RUNNER, DRAFTER, None),
        ({}, RUNNER, None, None),
        ({"json:dumps": ("obj", "gap")}, RUNNER, None, "json.dumps lacks the parameter gap"),
        ({"json:JSONEncoder.gone": ()}, RUNNER, None, "json.JSONEncoder.gone is missing"),
        ({"json.gone:dumps": ()}, RUNNER, None, "json.gone.dumps is missing"),
        ({}, object(), None, "object has no 'input_batch.req_ids'"),
        ({}, RUNNER, object(), "object has no 'max_model_len'"),
    ],
)
def test_what_is_otherwise_is_named_as_the_server_starts(
    monkeypatch, functions, runner, drafter, says
):
    monkeypatch.setattr(compatibility, "FUNCTIONS_V1", functions)
    if says is None:
        check_runner(runner, drafter)
        return
    line = refusal(ServingError, check_runner, runner, drafter)
    assert line.startswith(f"vLLM 0.40.0 is not as adaspec knows it: {says}")
