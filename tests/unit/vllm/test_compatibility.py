"""Whatever of vLLM is patched, called or read is looked at before anything is served."""

import sys
import types

import pytest

from adaspec.errors import ServingError
from adaspec.vllm import compatibility
from adaspec.vllm.compatibility import check_runner
from adaspec.vllm.patching import RUNNER_V2
from adaspec.vllm.plugin import PATCHES

PARAMETERS = ("num_speculative_tokens", "target_positions")


class Eagle:
    """As much of a vLLM as adaspec looks at here: a function, and what it reads of a drafter."""

    def propose(self, num_speculative_tokens, target_positions, common_attn_metadata):
        """As adaspec calls it."""


class Later(Eagle):
    def propose(self, num_speculative_tokens, positions, common_attn_metadata):
        """Of a kind of its own."""


@pytest.fixture
def functions(monkeypatch):
    """Has a vLLM of which adaspec knows no functions but those that a test names."""
    known, vllm = compatibility.FUNCTIONS_V1, types.ModuleType("vllm")
    for path in [*reversed(known)]:
        monkeypatch.delitem(known, path)
    vllm.__version__, vllm.Eagle, vllm.Later = "0.40.0", Eagle, Later
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setattr(compatibility, "RUNNER_ATTRIBUTES", ("input_batch.req_ids",))
    monkeypatch.setattr(compatibility, "DRAFTER_ATTRIBUTES", ("max_model_len",))
    return lambda path: monkeypatch.setitem(known, path, PARAMETERS)


def runner():
    return types.SimpleNamespace(input_batch=types.SimpleNamespace(req_ids=[]))


def drafter():
    return types.SimpleNamespace(max_model_len=100)


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


def test_a_vllm_that_is_as_expected_is_taken(functions):
    functions("vllm:Eagle.propose")
    check_runner(runner(), drafter())
    check_runner(runner(), None)


@pytest.mark.parametrize(
    ("path", "changed", "says"),
    [
        ("vllm:Later.propose", {}, "vllm.Later.propose lacks the parameter target_positions"),
        ("vllm:Eagle.gone", {}, "vllm.Eagle.gone is missing"),
        (None, {"runner": object()}, "object has no 'input_batch.req_ids'"),
        (None, {"drafter": object()}, "object has no 'max_model_len'"),
    ],
)
def test_what_is_otherwise_is_named_as_the_server_starts(functions, path, changed, says):
    if path is not None:
        functions(path)
    with pytest.raises(ServingError) as caught:
        check_runner(**{"runner": runner(), "drafter": drafter(), **changed})
    line = str(caught.value)
    assert line.isprintable()
    assert line.startswith(f"vLLM 0.40.0 is not as adaspec knows it: {says}")
