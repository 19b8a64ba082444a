"""On V1, tensor-parallel ranks change the mode in the same step: otherwise they would hang."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
def test_two_ranks_follow_one_mode_file(models, tmp_path):
    script = Path(__file__).with_name("two_ranks_v1.py")
    words = [sys.executable, str(script), str(models), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["same"]
    assert said["verified"]["serve"] > 50
