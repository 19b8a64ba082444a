from importlib.util import find_spec
from pathlib import Path

import pytest
from checkout import run_python

# Not imported here: it would import Triton before it is known who runs the kernels.
pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
PROGRAM = Path(__file__).parent / "compile_kernels.py"


def lines_of(tmp_path, *arguments):
    named = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ran = run_python(PROGRAM, *arguments, **named)
    return [line.split() for line in ran.stdout.splitlines()]


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h100(tmp_path):
    compiled = [name for name, *_ in lines_of(tmp_path)]
    assert set(compiled) == {"scan", "begin", "revise", "propose", "pack", "read", "trim"}
    # With limits and without, however many forwards ran: a server has compiled it at its start.
    assert compiled.count("pack") == 2


def test_no_step_waits_for_the_device(tmp_path):
    """It runs on tensors that have no values, which nothing can look at."""
    assert lines_of(tmp_path, "values") == []


def test_no_step_of_any_size_has_a_kernel_compiled_anew(tmp_path):
    """Triton compiles once more for a 1, for multiples of 16, and for where a tensor begins."""
    *new, (counted, started, launched) = lines_of(tmp_path, "keys")
    assert counted == "counted"
    assert not new
    assert int(started) > 0
    assert int(launched) > 100 * int(started)
