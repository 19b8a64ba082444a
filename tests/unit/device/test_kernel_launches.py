"""The kernels compile for a GPU that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h100(tmp_path: Path) -> None:
    program = Path(__file__).parent / "compile_kernels.py"
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, str(program)],
        env=variables | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    compiled = [line.split()[0] for line in ran.stdout.splitlines()]
    names = set(compiled)
    wanted = {
        "scan",
        "observe",
        "expect",
        "revise",
        "choose",
        "count_tokens",
        "splice",
        "extend",
        "propose",
        "pack",
    }
    assert names == wanted
    # With limits and without, however many forwards ran: a server has compiled it at its start.
    assert compiled.count("pack") == 2
