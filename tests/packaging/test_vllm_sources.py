"""Both versions of vLLM have what adaspec patches and calls, as their sources say."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("read_vllm_sources.py")


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_what_adaspec_patches_and_calls_is_there(version):
    # In a process of its own: here vLLM may have been imported.
    command = [sys.executable, str(PROGRAM), version]
    done = subprocess.run(command, capture_output=True, text=True)
    if "model runner" not in done.stdout:
        pytest.skip(f"the wheel of vLLM {version} could not be fetched")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("as adaspec expects") == 2
