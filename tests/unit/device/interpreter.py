"""Kernels on the device at hand: compiled on a GPU, and by Triton's interpreter where none is.

Import this before anything that imports Triton, which reads the variable when it is imported.
"""

from __future__ import annotations

import os
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu" and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
triton = pytest.importorskip("triton", reason="triton is not installed")


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True


if DEVICE.type == "cpu":
    if not triton.knobs.runtime.interpret:
        pytest.skip("triton was imported for a GPU, and there is none", allow_module_level=True)
    # The interpreter asks which backend is at work before it takes tensors of the host.
    triton.backends.backends["cpu"] = types.SimpleNamespace(driver=_Driver, compiler=None)
