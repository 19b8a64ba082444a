"""Kernels on the device at hand: compiled on a GPU, and by Triton's interpreter where none is.

Import this before anything that imports Triton, which must know from the start who runs it.
"""

import sys
import types
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu" and "triton" not in sys.modules:
    # Programs that other tests start must not find the variable.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        triton = pytest.importorskip("triton", reason="triton is not installed")
        triton.knobs.runtime.interpret = True
triton = pytest.importorskip("triton", reason="triton is not installed")
if DEVICE.type == "cpu" and not triton.knobs.runtime.interpret:
    pytest.skip("triton was imported for a GPU, and there is none", allow_module_level=True)


@contextmanager
def host_tensors():
    """Let the interpreter take tensors of the host: it asks which backend is at work."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE.type == "cpu":
            driver = types.SimpleNamespace(is_active=lambda: True)
            backend = types.SimpleNamespace(driver=driver, compiler=None)
            patch.setitem(triton.backends.backends, "cpu", backend)
        yield
